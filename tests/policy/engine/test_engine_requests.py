"""What a request can ask for, from end to end; and how it ends where that cannot be done."""

import asyncio
import json
import math
import re
from dataclasses import replace

import pytest

from practicum.errors import UsageError
from practicum.policy.engine import Engine
from practicum.sampling import Completion, Constraint, Sampling
from practicum.types import StopReason

from .calls import PROMPTS, gather, sampling

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Émile"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
END = 258


# --- constraints ------------------------------------------------------------------------------


async def test_a_json_schema_holds_at_any_temperature(engine: Engine) -> None:
    constraint = Constraint("json_schema", json.dumps(SCHEMA))
    calls = [
        (PROMPTS[3], Sampling(80, temperature, seed=seed, constraint=constraint, top_k=20))
        for temperature in (0.0, 1.0, 5.0)
        for seed in range(8)
    ]
    done = await gather(engine, calls)
    ended = [each for each in done if each.stop_reason is StopReason.EOS]
    assert len(ended) > 3
    for each in ended:
        said = json.loads(each.text)
        assert said["name"] in ("Ada", "Émile")
        assert said["age"] <= 99
        assert each.token_ids[-1] == END
    assert any(mass < 0 for mass in ended[-1].log_kept_mass)


async def test_a_regex_and_a_choice_hold(engine: Engine) -> None:
    calls = [
        (prompt, Sampling(20, seed=seed, constraint=constraint))
        for constraint in (Constraint("regex", "[ab]{2,4}c"), Constraint("choice", '["no", "yes"]'))
        for prompt in PROMPTS
        for seed in range(2)
    ]
    for (_, asked), each in zip(calls, await gather(engine, calls), strict=True):
        assert each.stop_reason is StopReason.EOS
        assert re.fullmatch("[ab]{2,4}c|no|yes", each.text)
        assert asked.constraint is not None
        assert (asked.constraint.kind == "choice") == (each.text in ("no", "yes"))


FORBIDDEN = Sampling(
    12,
    constraint=Constraint("choice", '["ab", "cd"]'),
    logit_bias=((ord("b"), -math.inf), (ord("d"), -math.inf)),
)


async def test_a_constraint_that_leaves_no_token_ends_its_own_request_alone(engine: Engine) -> None:
    """Its neighbours share its row until it ends."""
    good = [(PROMPTS[0], sampling(seed=seed)) for seed in range(4)]
    expected = await gather(engine, good)
    calls = [(PROMPTS[0], FORBIDDEN), *good, (PROMPTS[0], replace(FORBIDDEN, temperature=0.0))]
    first, *done, last = await asyncio.gather(
        *(engine.generate(*call) for call in calls), return_exceptions=True
    )
    for error in (first, last):
        assert isinstance(error, UsageError)
        assert "no token is left to be number 2" in str(error)
    assert done == expected
    with pytest.raises(UsageError, match="no token is left to be number 2"):
        async for _ in engine.stream(PROMPTS[1], FORBIDDEN):
            pass
    scheduler = engine._core.scheduler  # pyright: ignore[reportPrivateUsage]
    await engine.generate(*good[0])
    scheduler.check()
    assert not scheduler.running


async def test_a_constraint_that_leaves_no_first_token_ends_its_request(engine: Engine) -> None:
    bias = ((ord("a"), -math.inf), (ord("c"), -math.inf))
    with pytest.raises(UsageError, match="no token is left to be number 1"):
        await engine.generate(PROMPTS[2], replace(FORBIDDEN, logit_bias=bias))


# --- logits -----------------------------------------------------------------------------------


async def test_a_bias_forces_and_forbids(engine: Engine) -> None:
    forced = await engine.generate(PROMPTS[0], sampling(logit_bias=((65, 1e4),)))
    assert set(forced.token_ids) == {65}
    free = await engine.generate(PROMPTS[0], sampling(temperature=0.0))
    banned = tuple((token, -math.inf) for token in set(free.token_ids))
    other = await engine.generate(PROMPTS[0], sampling(temperature=0.0, logit_bias=banned))
    assert not set(other.token_ids) & set(free.token_ids)
    assert forced.logprobs[0] < 0, "the log-prob is the model's own"
    kept = [p - mass for p, mass in zip(forced.logprobs, forced.log_kept_mass, strict=True)]
    assert kept == pytest.approx([0.0] * 12, abs=1e-6)


async def test_penalties_make_it_repeat_itself_less(engine: Engine) -> None:
    async def num_different(**changes: object) -> int:
        calls = [
            (prompt, sampling(max_new_tokens=60, temperature=0.3, **changes)) for prompt in PROMPTS
        ]
        return sum(len(set(each.token_ids)) for each in await gather(engine, calls))

    plain = await num_different()
    for name, strength in (
        ("repetition_penalty", 3.0),
        ("presence_penalty", 5.0),
        ("frequency_penalty", 5.0),
    ):
        assert await num_different(**{name: strength}) > 1.2 * plain


async def test_the_likeliest_tokens_are_reported_beside_each(engine: Engine) -> None:
    for temperature in (0.0, 1.0):
        done = await engine.generate(PROMPTS[0], sampling(temperature=temperature, top_logprobs=5))
        assert len(done.top_logprobs) == len(done.token_ids)
        for token_id, logprob, top in zip(
            done.token_ids, done.logprobs, done.top_logprobs, strict=True
        ):
            assert [p for _, p in top] == sorted((p for _, p in top), reverse=True)
            assert len({token for token, _ in top}) == 5
            if token_id in dict(top):
                assert dict(top)[token_id] == logprob
            else:
                assert logprob <= top[-1][1]
            assert temperature or token_id == top[0][0]


async def test_ends_of_text_can_be_ignored(engine: Engine) -> None:
    likely = ((END, 1e4),)
    done = await engine.generate(PROMPTS[0], sampling(logit_bias=likely))
    assert (done.token_ids, done.text, done.stop_reason) == ((END,), "", StopReason.EOS)
    done = await engine.generate(PROMPTS[0], sampling(logit_bias=likely, ignore_eos=True))
    assert done.token_ids == (END,) * 12
    assert done.stop_reason is StopReason.MAX_TOKENS
    done = await engine.generate(
        PROMPTS[0], sampling(logit_bias=((65, 1e4),), stop_token_ids=(65,))
    )
    assert (done.token_ids, done.text, done.stop_reason) == ((65,), "", StopReason.EOS)


# --- what cannot be asked ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "changes", "named"),
    [
        ([1.5], {}, "token ids are whole numbers"),
        (["a"], {}, "token ids are whole numbers"),
        ([1], {"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ([1], {"top_k": 2.0}, "top_k must be a whole number"),
        ([1], {"top_logprobs": 1.0}, "top_logprobs must be a whole number"),
        ([1], {"max_new_tokens": 2.5}, "max_new_tokens must be a whole number"),
        ([1], {"stop": "END"}, "stop must be a tuple of strings, not 'END'"),
        ([1], {"stop": (5,)}, "stop must be a tuple of strings"),
        ([1], {"stop_token_ids": ("a",)}, "stop_token_ids names token 'a'"),
        ([1], {"logit_bias": ((1.5, 2.0),)}, "logit_bias names token 1.5"),
        ([1], {"logit_bias": ((999, 2.0),)}, "outside the vocabulary"),
        ([1], {"temperature": 1e-9}, "out of range"),
        ([1], {"constraint": Constraint("regex", "(")}, "cannot be used"),
        ([1], {"constraint": Constraint("json_schema", "{")}, "cannot be used"),
        ([1], {"constraint": Constraint("regex", "a"), "ignore_eos": True}, "contradicts"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_it_reaches_the_batch(
    engine: Engine, prompt: list[int], changes: dict[str, object], named: str
) -> None:
    good = (PROMPTS[0], sampling(seed=3))
    answers = await asyncio.gather(
        engine.generate(*good),
        engine.generate(prompt, sampling(**changes)),
        engine.generate(*good),
        return_exceptions=True,
    )
    assert isinstance(answers[1], UsageError), answers[1]
    assert named in str(answers[1])
    assert isinstance(answers[0], Completion)
    assert answers[0] == answers[2]
    assert engine.stats.requests == 2
