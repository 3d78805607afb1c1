"""Pieces of text come early, are never broken, and are together the text of all tokens."""

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from practicum.policy.engine.detokenise import LONGEST_WINDOW, UNFINISHED, Detokeniser
from practicum.policy.model.tokens import Tokens

SMOLLM2 = Path.home() / ".cache/practicum/models/smollm2-135m"


def joined(parts: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


text_bytes = st.text(alphabet="ab é→😀👩‍👩‍👧\N{REPLACEMENT CHARACTER}\n").map(
    lambda t: list(t.encode())
)
any_bytes = st.lists(st.integers(0, 258), max_size=40)
byte_tokens = st.lists(st.one_of(text_bytes, any_bytes), max_size=6).map(joined)


def pieces(decode: Callable[[Sequence[int]], str], token_ids: Sequence[int]) -> list[str]:
    detokeniser = Detokeniser(decode)
    return [detokeniser.push(token_id) for token_id in token_ids] + [detokeniser.flush()]


@settings(max_examples=300, deadline=None)
@given(byte_tokens)
def test_all_pieces_are_the_text_of_all_tokens(tokens: Tokens, token_ids: list[int]) -> None:
    assert "".join(pieces(tokens.decode, token_ids)) == tokens.decode(token_ids)


def test_long_runs_of_bytes_that_make_no_text_are_still_exact_and_cheap(tokens: Tokens) -> None:
    rng = random.Random(0)
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return tokens.decode(token_ids)

    leads_and_rests = [0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xFF, 256]
    for _ in range(20):
        token_ids = [*rng.choices(leads_and_rests, k=300), 0xE2, *[256] * 100, 0x82, 0xAC]
        assert "".join(pieces(decode, token_ids)) == tokens.decode(token_ids)
    assert longest <= 3 * LONGEST_WINDOW


@pytest.mark.parametrize(
    "token_ids",
    [
        [0xF0, 0x9F, 0x98] * 50,
        [0x80] * 27 + [0xE2] + [256] * 5 + [0x82, 0xAC],
        [0x80] * 31 + list("€".encode()) + [0x80] * 40,
    ],
    ids=["unfinished", "control tokens inside a character", "a character amid the rest"],
)
def test_text_is_exact_where_a_long_run_is_cut(tokens: Tokens, token_ids: list[int]) -> None:
    assert "".join(pieces(tokens.decode, token_ids)) == tokens.decode(token_ids)


@settings(deadline=None)
@given(st.text(alphabet="ab é→😀"))
def test_no_piece_of_good_text_is_ever_broken(tokens: Tokens, text: str) -> None:
    assert not any(UNFINISHED in piece for piece in pieces(tokens.decode, list(text.encode())))


def test_a_character_comes_with_its_last_byte(tokens: Tokens) -> None:
    assert pieces(tokens.decode, list("a😀b".encode())) == ["a", "", "", "", "😀", "b", ""]


def test_a_control_token_between_two_bytes_of_a_character_is_no_text(tokens: Tokens) -> None:
    euro = list("€".encode())
    assert pieces(tokens.decode, [euro[0], 256, euro[1], 257, euro[2]])[-2:] == ["€", ""]


def test_what_stays_unfinished_is_flushed_as_the_replacement_character(tokens: Tokens) -> None:
    assert pieces(tokens.decode, [97, *"😀".encode()[:3]]) == ["a", "", "", "", UNFINISHED]


def byte_fallback() -> Tokenizer:
    """Like sentence-piece tokenizers: words with a mark for the space before, single bytes."""
    words = ["▁", "▁yes", "▁no", "es", "→"]
    vocabulary = {word: number for number, word in enumerate(words)}
    vocabulary |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    return tokenizer


words_and_characters = st.lists(
    st.one_of(
        st.integers(0, 4).map(lambda word: [word]),
        st.sampled_from("aé→😀").map(lambda character: [5 + byte for byte in character.encode()]),
    ),
    max_size=40,
).map(joined)


@settings(deadline=None)
@given(words_and_characters)
def test_spaces_and_byte_tokens_of_sentence_piece_tokenizers_are_kept(token_ids: list[int]) -> None:
    decode = byte_fallback().decode
    assert "".join(pieces(decode, token_ids)) == decode(token_ids)


@pytest.mark.skipif(not (SMOLLM2 / "tokenizer.json").exists(), reason="SmolLM2 is not here")
def test_it_is_exact_on_a_real_tokenizer() -> None:
    tokens = Tokens(SMOLLM2)
    rng = random.Random(0)
    vocabulary: dict[str, int] = json.loads((SMOLLM2 / "tokenizer.json").read_text())["model"][
        "vocab"
    ]
    short = [token_id for piece, token_id in vocabulary.items() if len(piece) == 1]
    text = tokens.encode("Grüße 👩‍👩‍👧 → “smart” 数学 😀\n\n" * 3)
    for _ in range(30):
        kinds = [rng.choices(range(49152), k=20), rng.choices(short, k=60), text]
        rng.shuffle(kinds)
        token_ids = joined(kinds)
        assert "".join(pieces(tokens.decode, token_ids)) == tokens.decode(token_ids)
