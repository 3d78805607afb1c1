"""Where has this been said before? Streams of tokens, searched by the longest common past.

An index holds the places after every pair of adjacent tokens: adding a token and finding the places
that match a context by at least a pair take constant time, however long the streams are; longer
matches are told apart by walking back from there. Every matching place votes for the token that
followed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from practicum.types import WeightVersion

SHORTEST_MATCH = 2
LONGEST_MATCH = 16
"""A match is not followed further back: it could hardly say more."""
MAX_PLACES = 64
"""Most places that one search looks at, the latest first."""


@dataclass(slots=True)
class Stream:
    """Tokens in order."""

    version: WeightVersion
    """Of the weights that sampled it last."""
    tokens: list[int] = field(default_factory=list[int])


class Match(NamedTuple):
    """A place whose past agrees with the context."""

    stream: Stream
    next: int
    """Index of the token after the place; it may not be there yet."""
    length: int
    """Tokens that agree, up to LONGEST_MATCH."""


class SuffixIndex:
    """Streams that grow, and the places after each pair of tokens in them."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], list[tuple[Stream, int]]] = {}
        self.num_tokens = 0

    def extend(self, stream: Stream, tokens: Sequence[int]) -> None:
        """Append tokens to a stream of this index, which may be new."""
        mine = stream.tokens
        for token in tokens:
            if mine:
                self._places.setdefault((mine[-1], token), []).append((stream, len(mine) + 1))
            mine.append(token)
        self.num_tokens += len(tokens)

    def matches(self, context: Sequence[int]) -> Iterator[Match]:
        """The latest places that agree with the end of the context by a pair or more."""
        if len(context) < SHORTEST_MATCH:
            return
        places = self._places.get((context[-2], context[-1]), ())
        for stream, place in places[-MAX_PLACES:]:
            if place < len(stream.tokens):
                yield Match(stream, place, _agreement(context, stream.tokens, place))


def _agreement(context: Sequence[int], tokens: Sequence[int], place: int) -> int:
    """How many tokens before the end of the context and before the place are equal; a pair is."""
    longest = min(LONGEST_MATCH, len(context), place)
    length = SHORTEST_MATCH
    while length < longest and context[-1 - length] == tokens[place - 1 - length]:
        length += 1
    return length
