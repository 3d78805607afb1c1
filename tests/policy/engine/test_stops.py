"""A stop string is found at the first token that completes it, whatever the tokens' borders are."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from practicum.policy.engine.stops import StopSearch
from practicum.policy.model.tokens import Tokens


def search(tokens: Tokens, token_ids: list[int], *stops: str) -> tuple[int, str] | None:
    """How many tokens were needed, and the text before the stop."""
    looking = StopSearch(stops, tokens.decode)
    for count, token_id in enumerate(token_ids, start=1):
        if (text := looking.push(token_id)) is not None:
            return count, text
    return None


def test_the_text_ends_before_the_stop(tokens: Tokens) -> None:
    assert search(tokens, list(b"7\nmax("), "\n") == (2, "7")


def test_a_stop_string_of_several_tokens_is_found(tokens: Tokens) -> None:
    assert search(tokens, list(b"so: END."), "END") == (7, "so: ")
    assert search(tokens, list(b"EN END"), "END") == (6, "EN ")


def test_the_earliest_of_several_stops_cuts(tokens: Tokens) -> None:
    assert search(tokens, list(b"xab"), "b", "ab") == (3, "x")


def test_a_stop_string_of_many_bytes_is_found_at_its_last(tokens: Tokens) -> None:
    assert search(tokens, list("数→答".encode()), "→") == (6, "数")


def test_half_a_character_is_no_text_yet(tokens: Tokens) -> None:
    """The first two bytes of a three-byte character decode to nothing that could match."""
    assert search(tokens, list("数".encode())[:2] + list(b"\n"), "\n") is not None
    assert search(tokens, list("数".encode())[:2], "\N{REPLACEMENT CHARACTER}") is None


def test_a_space_that_shows_only_after_another_token_counts() -> None:
    """Sentence-piece tokenizers drop the first space of a text, but not those between tokens."""
    pieces, decoder = ["▁yes", "▁no"], decoders.Metaspace()

    def decode(token_ids: Sequence[int]) -> str:
        return decoder.decode([pieces[token_id] for token_id in token_ids])

    looking = StopSearch((" no",), decode)
    assert [looking.push(token_id) for token_id in (1, 0, 0, 1)] == [None] * 3 + ["no yes yes"]


def test_an_empty_stop_string_is_a_mistake(tokens: Tokens) -> None:
    with pytest.raises(ValueError, match="empty"):
        StopSearch(("a", ""), tokens.decode)


@given(
    st.lists(st.one_of(st.sampled_from(list("ab\né→".encode())), st.integers(0, 258)), max_size=30),
    st.lists(st.text(alphabet="ab\né→", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_it_agrees_with_decoding_everything_every_time(
    tokens: Tokens, token_ids: list[int], stops: list[str]
) -> None:
    expected = None
    for count in range(1, len(token_ids) + 1):
        text = tokens.decode(token_ids[:count])
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        if places:
            expected = (count, text[: min(places)])
            break
    assert search(tokens, token_ids, *stops) == expected
