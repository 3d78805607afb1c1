"""Curves over the steps of a run: each step's mean, and a trend with the interval it deserves.

The trend pools the attempts of neighbouring steps from the store, clustered by group (attempts at
one task are no independent samples): its band is an honest 95 % interval of what the line shows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from practicum.observe.metrics import Row
from practicum.observe.segments import TrajectoryRow
from practicum.observe.step_numbers import read_step
from practicum.statistics import clustered_mean

HEALTH = (
    ("groups/signal_share", "Groups with a signal"),
    ("train/entropy", "Token entropy"),
    ("train/logprob_gap", "Log-prob gap, engine to trainer"),
    ("train/grad_norm", "Gradient norm"),
    ("staleness/mean", "Staleness, versions"),
    ("train/clip_share", "Share of tokens clipped"),
)
"""Metrics that a report draws, if the run has them, and their titles."""


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a curve; where the spread is unknown, low and high equal the trend."""

    step: int
    mean: float
    """Of this step alone."""
    trend: float
    """Mean over this step and its neighbours."""
    low: float
    high: float


Curve = tuple[Point, ...]

T = TypeVar("T")


def reward_curves(
    rows: Sequence[TrajectoryRow], steps: Mapping[str, int], metrics: Sequence[Row]
) -> tuple[Curve, Mapping[str, Curve]]:
    """The reward of every step over all domains, and of each domain."""
    trained = [row for row in rows if row.reward is not None and row.group_id in steps]
    if not trained:
        return _from_metrics(metrics)
    domains: defaultdict[str, list[TrajectoryRow]] = defaultdict(list)
    for row in trained:
        domains[row.domain].append(row)
    by_domain = {domain: _clustered(found, steps) for domain, found in sorted(domains.items())}
    return _clustered(trained, steps), by_domain


def health_curves(metrics: Sequence[Row]) -> list[tuple[str, Curve]]:
    """(title, curve) of each HEALTH metric that was ever other than 0, and of the speed."""
    curves: list[tuple[str, Curve]] = []
    for key, title in HEALTH:
        values = [(int(row["step"]), row[key]) for row in metrics if key in row]
        curves.append((title, _plain(values)))
    speed = [
        (numbers.step, numbers.tokens_per_s)
        for numbers in map(read_step, metrics)
        if numbers.tokens_per_s is not None
    ]
    curves.append(("Sampled tokens per second", _plain(speed)))
    return [(title, curve) for title, curve in curves if any(point.mean for point in curve)]


def _clustered(rows: Sequence[TrajectoryRow], steps: Mapping[str, int]) -> Curve:
    by_step: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        if row.reward is not None:
            by_step[steps[row.group_id]].append((row.reward, row.group_id))
    found = sorted(by_step.items())
    points: list[Point] = []
    for (step, own), near in zip(found, _windows([rewards for _, rewards in found])):
        pooled = [reward for rewards in near for reward in rewards]
        interval = clustered_mean([reward for reward, _ in pooled], [group for _, group in pooled])
        mean = sum(reward for reward, _ in own) / len(own)
        points.append(_point(step, mean, interval.mean, interval.low, interval.high))
    return tuple(points)


def _from_metrics(metrics: Sequence[Row]) -> tuple[Curve, Mapping[str, Curve]]:
    overall: list[tuple[int, float]] = []
    by_domain: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for numbers in map(read_step, metrics):
        if numbers.reward is not None:
            overall.append((numbers.step, numbers.reward.mean))
        for domain, value in numbers.domain_rewards.items():
            by_domain[domain].append((numbers.step, value))
    drawn = {domain: _plain(found) for domain, found in sorted(by_domain.items())}
    return _plain(overall), {domain: curve for domain, curve in drawn.items() if curve}


def _point(step: int, mean: float, trend: float, low: float, high: float) -> Point:
    """One cluster says nothing about spread, and a picture cannot show infinity: no band then."""
    return Point(step, mean, trend, *((low, high) if math.isfinite(high - low) else (trend, trend)))


def _plain(values: Sequence[tuple[int, float]]) -> Curve:
    finite = [(step, value) for step, value in values if math.isfinite(value)]
    trends = [sum(near) / len(near) for near in _windows([value for _, value in finite])]
    return tuple(
        Point(step, value, trend, trend, trend) for (step, value), trend in zip(finite, trends)
    )


def _windows(values: Sequence[T]) -> list[Sequence[T]]:
    """For each value, it and its neighbours up to a ninth of the curve away, on each side."""
    reach = max(1, len(values) // 9)
    return [values[max(0, i - reach) : i + reach + 1] for i in range(len(values))]
