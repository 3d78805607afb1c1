"""Whatever is drawn under a constraint belongs to the language, and can end only there."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.errors import UsageError
from practicum.policy.engine.constraint import Grammars, Matcher
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Constraint

pytest.importorskip("llguidance")

VOCAB = 320  # a model's vocabulary can be larger than its tokenizer's
END = 258
SMOLLM2 = Path.home() / ".cache/practicum/models/smollm2-135m"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars(tokens: Tokens) -> Grammars:
    return Grammars(tokens, VOCAB)


def walk(matcher: Matcher, seed: int, most: int = 400) -> list[int] | None:
    """A random text of the language; None if it did not end in time."""
    rng, token_ids = np.random.default_rng(seed), list[int]()
    while len(token_ids) < most:
        allowed = np.flatnonzero(matcher.allowed())
        token_id = int(rng.choice(allowed))
        matcher.advance(token_id)
        if token_id == END:
            return token_ids
        token_ids.append(token_id)
    return None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_random_walks_match_the_regular_expression(
    grammars: Grammars, tokens: Tokens, seed: int
) -> None:
    pattern = r"(ab|é→)*[0-9]{2,3}( 😀)?"
    token_ids = walk(grammars.matcher(Constraint("regex", pattern)), seed)
    assert token_ids is not None
    assert re.fullmatch(pattern, tokens.decode(token_ids))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_random_walks_follow_the_schema(grammars: Grammars, tokens: Tokens, seed: int) -> None:
    token_ids = walk(grammars.matcher(Constraint("json_schema", json.dumps(PERSON))), seed)
    if token_ids is None:  # JSON may hold any number of spaces and digits
        return
    value = json.loads(tokens.decode(token_ids))
    assert value.keys() == {"name", "age"}
    assert isinstance(value["age"], int)
    assert len(value["name"]) <= 5


CHOICES = ["yes", 'n"o\n', "é😀", "\\d", "yes!"]


def test_random_walks_make_every_choice_and_no_other(grammars: Grammars, tokens: Tokens) -> None:
    constraint = Constraint("choice", json.dumps(CHOICES))
    texts = [tokens.decode(walk(grammars.matcher(constraint), seed) or []) for seed in range(60)]
    assert set(texts) == set(CHOICES)


def test_it_can_end_only_where_it_is_complete(grammars: Grammars) -> None:
    matcher = grammars.matcher(Constraint("regex", "a(bc)?"), stop_token_ids=[ord("z"), ord("c")])
    assert set(np.flatnonzero(matcher.allowed())) == {ord("a")}
    assert not matcher.complete
    matcher.advance(ord("a"))
    assert matcher.complete
    assert set(np.flatnonzero(matcher.allowed())) == {ord("b"), ord("z"), ord("c"), END}
    matcher.advance(ord("b"))
    assert not matcher.allowed().any()  # only `c` could follow, and it would end the text


def test_the_rest_of_a_larger_vocabulary_is_never_allowed(grammars: Grammars) -> None:
    allowed = grammars.matcher(Constraint("regex", r"(?s:.*)")).allowed()
    assert allowed.shape == (VOCAB,)
    assert allowed[ord("x")]
    assert not allowed[256:258].any()
    assert not allowed[259:].any()


def test_drafts_are_looked_at_without_moving(grammars: Grammars) -> None:
    matcher, other = (grammars.matcher(Constraint("regex", "abcd?")) for _ in range(2))
    masks = matcher.allowed_along(list(b"abx"))
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[97], [98], [99]]
    for token_id in b"abc":
        assert np.array_equal(matcher.allowed(), other.allowed())
        matcher.advance(token_id)
        other.advance(token_id)
    masks = matcher.allowed_along([END])
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[100, END]]


def test_matchers_of_one_constraint_are_apart_and_compiled_once(grammars: Grammars) -> None:
    constraint = Constraint("regex", "(ab)+")
    first, second = grammars.matcher(constraint), grammars.matcher(constraint)
    first.advance(ord("a"))
    assert first.allowed()[ord("b")]
    assert second.allowed()[ord("a")]


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("regex", "(ab", "unclosed group"),
        ("regex", "(?=a)b", "look-ahead"),
        ("regex", r"[^\s\S]", "matches no text"),
        ("json_schema", "{", "Expecting"),
        ("json_schema", "[1]", "an object"),
        ("json_schema", '{"type": "objekt"}', "objekt"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "nsatisfiable"),
        ("choice", "yes", "Expecting"),
        ("choice", "[]", "not empty"),
        ("choice", '["a", 1]', "nothing else"),
    ],
)
def test_a_bad_constraint_is_refused_with_its_reason(
    grammars: Grammars, kind: str, text: str, why: str
) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        grammars.matcher(Constraint(kind, text))  # pyright: ignore[reportArgumentType]
    assert kind in str(caught.value)


def test_a_token_that_was_not_allowed_is_noticed(grammars: Grammars) -> None:
    matcher = grammars.matcher(Constraint("regex", "ab"))
    with pytest.raises(UsageError, match="cannot be followed"):
        matcher.advance(ord("x"))


def test_without_the_package_the_way_to_install_it_is_told(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"pip install 'practicum\[constraints\]'"):
        Grammars(tokens, VOCAB).matcher(Constraint("regex", "a"))


@pytest.mark.skipif(not (SMOLLM2 / "tokenizer.json").exists(), reason="SmolLM2 is not here")
def test_a_real_tokenizer_spells_the_language() -> None:
    tokens = Tokens(SMOLLM2)
    matcher = Grammars(tokens, 49152).matcher(Constraint("regex", r"The answer is [0-9]{1,3}\."))
    for token_id in tokens.encode("The answer is 42."):
        assert matcher.allowed()[token_id]
        matcher.advance(token_id)
    assert set(np.flatnonzero(matcher.allowed())) == tokens.eos_ids
