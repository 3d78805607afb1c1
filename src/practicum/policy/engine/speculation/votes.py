"""From matching places to guesses: places vote for the token that followed them.

Where the number that will draw the token is known, the guess is drawn from the votes by that same
number, as the target draws from its distribution: the more the two agree, the more often the tokens
are equal, while the likeliest token could be right no more often than its probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from practicum.policy.engine.speculation.proposal import Guess
from practicum.policy.engine.speculation.suffixes import SHORTEST_MATCH, Match
from practicum.types import WeightVersion

SAY = 3.0
"""How much more a vote counts for each further token of its match."""
KEEP = 0.8
"""What a vote of one weight version earlier counts."""
DOUBT = 3.0
"""Matching tokens of evidence at which a unanimous vote is believed half. With it confidences are
close to the measured shares of right guesses on sampled text."""


def guesses(
    matches: Iterable[Match],
    max_guesses: int,
    uniforms: Sequence[float] | None,
    version: WeightVersion,
) -> list[Guess]:
    """Follow the matches, dropping after each guess those that went another way."""
    alive = list(matches)[::-1]  # the latest first: of equal votes the first wins
    result: list[Guess] = []
    while alive and len(result) < max_guesses:
        votes: dict[int, float] = {}
        for match in alive:
            token = match.stream.tokens[match.next]
            age = max(0, version - match.stream.version)
            say = SAY ** (match.length - SHORTEST_MATCH) * KEEP**age
            votes[token] = votes.get(token, 0.0) + say
        place = len(result)
        number = uniforms[place] if uniforms is not None and place < len(uniforms) else None
        token = likeliest(votes) if number is None else drawn(votes, number)
        alive = [match for match in alive if match.stream.tokens[match.next] == token]
        evidence = len(alive) * (max(match.length for match in alive) - 1)
        share = votes[token] / sum(votes.values())
        result.append(Guess(token, share * evidence / (evidence + DOUBT)))
        alive = [
            Match(match.stream, match.next + 1, match.length + 1)
            for match in alive
            if match.next + 1 < len(match.stream.tokens)
        ]
    return result


def likeliest(votes: dict[int, float]) -> int:
    return max(votes, key=lambda token: votes[token])


def drawn(votes: dict[int, float], number: float) -> int:
    """The inverse of the cumulative votes in the order of token ids, at a number in [0, 1)."""
    target, total = number * sum(votes.values()), 0.0
    *others, last = sorted(votes)
    for token in others:
        total += votes[token]
        if total > target:
            return token
    return last
