"""What a step costs in seconds as a function of its rows, learnt from the steps themselves.

Times are averaged in buckets of rows, a quarter of a doubling each, then made non-decreasing (more
rows cannot be faster) and joined by straight lines. Beyond what was measured, time grows as it does
on a machine whose fixed cost equals `FLAT_ROWS` rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

FLAT_ROWS = 20.0
MEMORY = 16
"""Observations that an average remembers."""
STALE_STEPS = 4096
"""A bucket not seen for so many steps is of another time, and forgotten."""
OUTLIER = 4.0
"""An observation counts as at most so many times the average: a pause is not a cost."""


@dataclass(slots=True)
class _Bucket:
    rows: float = 0.0
    seconds: float = 0.0
    num_steps: int = 0
    last_step: int = 0

    def add(self, rows: int, seconds: float, step: int) -> None:
        if self.num_steps >= 3:
            seconds = min(seconds, OUTLIER * self.seconds)
        self.num_steps = min(self.num_steps + 1, MEMORY)
        self.rows += (rows - self.rows) / self.num_steps
        self.seconds += (seconds - self.seconds) / self.num_steps
        self.last_step = step


class StepCost:
    """A monotone table of seconds by rows."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}
        self._step = 0
        self._curve: tuple[list[float], list[float]] = ([], [])

    def observe(self, rows: int, seconds: float) -> None:
        """One step of so many rows took so long."""
        self._step += 1
        bucket = self._buckets.setdefault(_bucket_of(rows), _Bucket())
        bucket.add(rows, seconds, self._step)
        oldest = self._step - STALE_STEPS
        self._buckets = {key: b for key, b in self._buckets.items() if b.last_step > oldest}
        self._curve = _monotone([self._buckets[key] for key in sorted(self._buckets)])

    def measured(self, rows: int) -> bool:
        """Whether steps of about so many rows have been seen."""
        return _bucket_of(rows) in self._buckets

    def seconds(self, rows: int) -> float:
        """Expected time of a step; in unknown units before the first observation."""
        xs, ys = self._curve
        if not xs:
            return _shape(rows)
        if rows <= xs[0]:
            return ys[0] * _shape(rows) / _shape(xs[0])
        if rows >= xs[-1]:
            return ys[-1] * _shape(rows) / _shape(xs[-1])
        right = bisect_right(xs, rows)
        share = (rows - xs[right - 1]) / (xs[right] - xs[right - 1])
        return ys[right - 1] + share * (ys[right] - ys[right - 1])


def _bucket_of(rows: int) -> int:
    return round(4 * math.log2(rows))


def _shape(rows: float) -> float:
    return FLAT_ROWS + rows


def _monotone(buckets: list[_Bucket]) -> tuple[list[float], list[float]]:
    """Pool neighbours that are out of order into their mean (isotonic regression)."""
    pools: list[tuple[float, int, int]] = []  # seconds, weight, number of buckets
    for bucket in buckets:
        seconds, weight, size = bucket.seconds, bucket.num_steps, 1
        while pools and pools[-1][0] >= seconds:
            before, its_weight, its_size = pools.pop()
            seconds = (before * its_weight + seconds * weight) / (its_weight + weight)
            weight, size = weight + its_weight, size + its_size
        pools.append((seconds, weight, size))
    return (
        [bucket.rows for bucket in buckets],
        [seconds for seconds, _, size in pools for _ in range(size)],
    )
