"""Which guesses to run: as many, over the whole batch, as make the step yield most per second.

Running a guess costs a row wherever it stands, and brings the probability that it and all before it
come true, for each request of its sequence. So the best set of any size is the likeliest guesses,
and only the size is left to choose. A guess is never likelier than the one before it, so the
set never skips one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST_GAIN = 1.02
"""By how much tokens per second must rise, as expected: estimates are not that good."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run, and what it should bring."""

    counts: tuple[int, ...]
    """Guesses to run of each sequence."""
    extra_tokens: tuple[float, ...]
    """Expected right guesses of each sequence."""
    saved_s: float
    """Time that the expected tokens would have taken without guesses, less the time of this step;
    negative if it loses."""


def rank(gains: Sequence[Sequence[float]]) -> list[tuple[float, int]]:
    """All guesses as (gain, sequence), best first; `gains[i]` never rises along a sequence."""
    flat = [(gain, number) for number, of_one in enumerate(gains) for gain in of_one]
    return sorted(flat, key=lambda pair: -pair[0])  # stable: ties keep the order of sequences


def choose(
    gains: Sequence[Sequence[float]],
    plain_tokens: int,
    plain_rows: int,
    seconds: Callable[[int], float],
) -> Choice:
    """The set of guesses with the most expected tokens per second; none where none gains."""
    ranked = rank(gains)
    best, best_rate = 0, LEAST_GAIN * plain_tokens / seconds(plain_rows)
    tokens = float(plain_tokens)
    for size, (gain, _) in enumerate(ranked, start=1):
        tokens += gain
        rate = tokens / seconds(plain_rows + size)
        if rate > best_rate:
            best, best_rate = size, rate
    return take(ranked[:best], len(gains), plain_tokens, plain_rows, seconds)


def take(
    picked: Sequence[tuple[float, int]],
    num_sequences: int,
    plain_tokens: int,
    plain_rows: int,
    seconds: Callable[[int], float],
) -> Choice:
    """The choice of exactly these guesses."""
    counts, extra = [0] * num_sequences, [0.0] * num_sequences
    for gain, number in picked:
        counts[number] += 1
        extra[number] += gain
    plain_s = seconds(plain_rows)
    worth_s = plain_s * (plain_tokens + sum(extra)) / plain_tokens
    step_s = seconds(plain_rows + len(picked))
    return Choice(tuple(counts), tuple(extra), worth_s - step_s if picked else 0.0)
