"""A completion ends at the first reason, and streams exactly the text that it will have."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.policy.engine.ending import Ending
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Sampling
from practicum.types import StopReason

END = 258


def follow(
    tokens: Tokens,
    token_ids: list[int],
    sampling: Sampling | None = None,
    *,
    room: int = 100,
    streaming: bool = True,
) -> tuple[Ending, list[str]]:
    """Push tokens until the end: the ending, and the pieces on the way."""
    sampling = sampling or Sampling(50)
    ending = Ending(sampling, tokens.eos_ids, tokens.decode, room, streaming)
    pieces: list[str] = []
    for token_id in token_ids:
        if ending.reason is not None:
            break
        pieces.append(ending.push(token_id))
    return ending, pieces


@pytest.mark.parametrize("streaming", [True, False])
def test_an_end_of_text_ends_it_and_is_no_text(tokens: Tokens, streaming: bool) -> None:
    ending, pieces = follow(tokens, [*b"hi", END, *b"x"], streaming=streaming)
    assert (ending.reason, ending.text, len(pieces)) == (StopReason.EOS, "hi", 3)


def test_ends_of_text_can_be_ignored(tokens: Tokens) -> None:
    ending, _ = follow(tokens, [*b"a", END, *b"b"], Sampling(3, ignore_eos=True))
    assert (ending.reason, ending.text) == (StopReason.MAX_TOKENS, "ab")


def test_a_stop_token_ends_it_even_if_ends_of_text_are_ignored(tokens: Tokens) -> None:
    sampling = Sampling(9, stop_token_ids=(ord("!"),), ignore_eos=True)
    ending, pieces = follow(tokens, list(b"hi!x"), sampling)
    assert (ending.text, len(pieces)) == ("hi", 3)
    assert ending.reason is not StopReason.MAX_TOKENS


def test_the_last_token_and_the_end_of_the_context_are_told_apart(tokens: Tokens) -> None:
    assert follow(tokens, list(b"abc"), Sampling(3))[0].reason is StopReason.MAX_TOKENS
    assert follow(tokens, list(b"abc"), Sampling(3), room=3)[0].reason is StopReason.CONTEXT_END
    assert follow(tokens, list(b"abc"), Sampling(9), room=2)[0].text == "ab"


def test_an_end_of_text_as_the_last_token_is_an_end_of_text(tokens: Tokens) -> None:
    assert follow(tokens, [97, END], Sampling(2), room=2)[0].reason is StopReason.EOS


def test_a_stop_string_at_the_last_token_is_a_stop_string(tokens: Tokens) -> None:
    ending, _ = follow(tokens, list(b"ab"), Sampling(2, stop=("b",)))
    assert (ending.reason, ending.text) == (StopReason.STOP_STRING, "a")


def test_what_may_become_a_stop_string_is_held_back(tokens: Tokens) -> None:
    _, pieces = follow(tokens, list(b"an EN END."), Sampling(50, stop=("END",)))
    assert pieces == ["a", "n", " ", "", "", "EN ", "", "", ""]
    ending, pieces = follow(tokens, list(b"an EN"), Sampling(5, stop=("END",)))
    assert (pieces[-1], ending.text) == ("EN", "an EN")


def test_of_overlapping_stops_the_earliest_cuts(tokens: Tokens) -> None:
    assert follow(tokens, list(b"xab"), Sampling(9, stop=("b", "ab")))[0].text == "x"
    assert follow(tokens, list(b"aaab"), Sampling(9, stop=("aab",)))[0].text == "a"


def test_an_abort_gives_what_was_held_back(tokens: Tokens) -> None:
    ending, _ = follow(tokens, list(b"so EN"), Sampling(50, stop=("END",)))
    assert ending.abort() == "EN"
    assert (ending.reason, ending.text) == (StopReason.ABORTED, "so EN")


some_tokens = st.lists(
    st.one_of(st.sampled_from(list("ab\né→😀".encode())), st.integers(0, END)), max_size=40
)
some_stops = st.lists(st.text(alphabet="ab\né→😀", min_size=1, max_size=4), max_size=3)


@settings(max_examples=300, deadline=None)
@given(some_tokens, some_stops, st.integers(1, 45), st.integers(1, 45))
def test_it_agrees_with_decoding_everything_every_time(
    tokens: Tokens, token_ids: list[int], stops: list[str], most: int, room: int
) -> None:
    """The reason, the number of tokens and the text are those of the plain definition."""
    expected = None
    for count in range(1, len(token_ids) + 1):
        text = tokens.decode(token_ids[:count])
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        if token_ids[count - 1] == END:
            expected = (StopReason.EOS, count, tokens.decode(token_ids[: count - 1]))
        elif places:
            expected = (StopReason.STOP_STRING, count, text[: min(places)])
        elif count >= room:
            expected = (StopReason.CONTEXT_END, count, text)
        elif count >= most:
            expected = (StopReason.MAX_TOKENS, count, text)
        if expected is not None:
            break
    sampling = Sampling(most, stop=tuple(stops))
    ending, pieces = follow(tokens, token_ids, sampling, room=room)
    if expected is None:
        ending.abort()
        expected = (StopReason.ABORTED, len(token_ids), tokens.decode(token_ids))
    assert (ending.reason, len(pieces), ending.text) == expected
    assert expected[2].startswith("".join(pieces))
    silent, _ = follow(tokens, token_ids, sampling, room=room, streaming=False)
    if silent.reason is None:
        silent.abort()
    assert (silent.reason, silent.text) == (ending.reason, ending.text)
