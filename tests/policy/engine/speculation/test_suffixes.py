"""The index finds exactly the places that a search through all tokens finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.policy.engine.speculation.proposal import Guess
from practicum.policy.engine.speculation.suffixes import LONGEST_MATCH, Match, Stream, SuffixIndex
from practicum.policy.engine.speculation.votes import DOUBT, drawn, guesses, likeliest
from practicum.types import WeightVersion

NOW = WeightVersion(3)
TOKENS = st.lists(st.integers(0, 2), max_size=20)


def by_search(streams: list[Stream], context: list[int]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for number, stream in enumerate(streams):
        for place in range(2, len(stream.tokens)):
            length = 0
            while length < min(LONGEST_MATCH, len(context), place) and (
                context[-1 - length] == stream.tokens[place - 1 - length]
            ):
                length += 1
            if length >= 2:
                found.append((number, place, length))
    return found


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), TOKENS), max_size=8), TOKENS)
def test_matches_are_those_of_a_full_search(
    pieces: list[tuple[int, list[int]]], context: list[int]
) -> None:
    """Streams grow piece by piece and in turns, as siblings do."""
    streams = [Stream(NOW) for _ in range(3)]
    index = SuffixIndex()
    for number, tokens in pieces:
        index.extend(streams[number], tokens[:5])
    found = [
        (next(n for n, s in enumerate(streams) if s is match.stream), match.next, match.length)
        for match in index.matches(context)
    ]
    assert sorted(found) == by_search(streams, context)
    assert index.num_tokens == sum(len(stream.tokens) for stream in streams)


def test_a_longer_match_outvotes_shorter_ones() -> None:
    long, short = Stream(NOW, [1, 2, 3, 4, 9]), Stream(NOW, [3, 4, 8])
    matches = [Match(long, 4, 4), Match(short, 2, 2), Match(short, 2, 2)]
    (guess,) = guesses(matches, 1, None, NOW)
    assert guess == Guess(9, 9 / 11 * 3 / (3 + DOUBT))


def test_what_newer_weights_said_outvotes_what_older_said() -> None:
    old, new = Stream(WeightVersion(0), [1, 2, 7]), Stream(NOW, [1, 2, 8])
    assert guesses([Match(old, 2, 2), Match(new, 2, 2)], 1, None, NOW)[0].token == 8


def test_guesses_go_on_along_the_places_that_agree_and_end_with_them() -> None:
    index = SuffixIndex()
    for tokens in ([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 5], [1, 2, 9]):
        index.extend(Stream(NOW), tokens)
    assert [g.token for g in guesses(index.matches([1, 2]), 8, None, NOW)] == [3, 5, 6]
    assert [g.token for g in guesses(index.matches([1, 2]), 2, None, NOW)] == [3, 5]
    assert guesses(index.matches([2]), 8, None, NOW) == []
    assert guesses(index.matches([7, 7]), 8, None, NOW) == []


def test_votes_are_drawn_by_the_number_that_will_draw_the_token() -> None:
    votes = {7: 1.0, 3: 1.0, 5: 2.0}
    assert [drawn(votes, number) for number in (0.0, 0.24, 0.26, 0.74, 0.76)] == [3, 3, 5, 5, 7]
    assert drawn({4: 0.1, 6: 0.2}, 1 - 2**-53) == 6
    assert likeliest(votes) == 5
