import math

import pytest

from practicum.errors import InfraError
from practicum.policy.engine.adapters.answers import Answer, Asked, completion, token_versions
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Sampling
from practicum.types import StopReason


def answered(tokens: Tokens, text: str, finish: str = "stop", **changes: object) -> Answer:
    token_ids = tokens.encode(text)
    fields = {
        "token_ids": token_ids,
        "logprobs": [-1.0] * len(token_ids),
        "finish": finish,
        "matched": None,
        "spans": None,
    }
    return Answer(**(fields | changes))  # pyright: ignore[reportArgumentType]


def asked(max_new_tokens: int = 8, *, fills_context: bool = False, **sampling: object) -> Asked:
    return Asked(Sampling(max_new_tokens, **sampling), 3, fills_context)  # pyright: ignore[reportArgumentType]


def test_text_ends_before_the_stop_string_and_the_tokens_do_not(tokens: Tokens):
    answer = answered(tokens, "7 stop", matched="st")
    done = completion(answer, asked(stop=("op", "st")), tokens, engine="e")
    assert done.text == "7 "
    assert done.token_ids == tuple(tokens.encode("7 stop"))
    assert done.stop_reason is StopReason.STOP_STRING


def test_the_end_token_is_kept_but_not_shown(tokens: Tokens):
    ids = [*tokens.encode("7"), min(tokens.eos_ids)]
    answer = Answer(ids, [-1.0] * len(ids), "stop", None, None)
    done = completion(answer, asked(), tokens, engine="e")
    assert (done.text, done.stop_reason) == ("7", StopReason.EOS)
    assert done.token_ids[-1] in tokens.eos_ids


@pytest.mark.parametrize(
    ("num_asked", "fills_context", "reason"),
    [
        (2, False, StopReason.MAX_TOKENS),
        (2, True, StopReason.CONTEXT_END),
        (5, False, StopReason.CONTEXT_END),
    ],
)
def test_a_length_is_the_callers_limit_or_the_models(
    tokens: Tokens, num_asked: int, fills_context: bool, reason: StopReason
):
    answer = Answer([5, 6], [-1.0, -2.0], "length", None, None)
    done = completion(answer, asked(num_asked, fills_context=fills_context), tokens, engine="e")
    assert done.stop_reason is reason


@pytest.mark.parametrize(
    "answer",
    [
        Answer([5], [-1.0], "abort", None, None),
        Answer([5], [-1.0], None, None, None),
        Answer([], [], "stop", None, None),
        Answer([5, 6], [-1.0], "stop", None, None),
        Answer([5], [math.nan], "length", None, None),
    ],
)
def test_what_an_engine_gave_up_is_never_a_completion(tokens: Tokens, answer: Answer):
    with pytest.raises(InfraError):
        completion(answer, asked(), tokens, engine="e")


def test_a_cut_whose_kept_mass_is_not_told_shows_in_whatever_uses_it(tokens: Tokens):
    done = completion(answered(tokens, "ab", "length"), asked(top_k=4), tokens, engine="e")
    assert all(map(math.isnan, done.log_kept_mass))
    assert completion(answered(tokens, "ab"), asked(), tokens, engine="e").log_kept_mass == ()


def test_every_token_has_the_version_that_sampled_it():
    spans = [
        {"version": "default", "start": 0, "end": 1},
        {"version": "4", "start": 1, "end": 3},
        {"version": "5", "start": 3, "end": 9},
    ]
    assert token_versions(spans, 5, known=3) == (3, 4, 4, 5, 5)
    assert token_versions(None, 2, known=3) == (3, 3)
