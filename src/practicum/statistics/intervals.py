"""A number with its uncertainty. Repeats of a task are not samples: cluster them.

`wilson` for shares of independent tasks, `mean_interval` for scores of independent tasks,
`clustered_mean` whenever one task was tried several times. The interval `p ± 1.96 s/sqrt(n)` is not
offered: at n = 30 and p = 0.02 it covers the truth 46 % of the time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from practicum.statistics.quantiles import normal_quantile, student_quantile, two_sided


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the range that holds the truth with the stated confidence.

    One observation says nothing about spread: its bounds are infinite, never the point itself.

    Example:
        wilson(13, 16) -> Interval(mean=0.8125, low=0.570, high=0.934, n=16)
    """

    mean: float
    low: float
    high: float
    n: int
    """Number of independent observations: tasks or clusters, not attempts."""


def wilson(num_successes: float, n: int, confidence: float = 0.95) -> Interval:
    """Interval of a share; right also near 0 and 1, and never outside them."""
    if n < 1 or not 0 <= num_successes <= n:
        raise ValueError(f"{num_successes} successes of {n} is not a share")
    z = normal_quantile(two_sided(confidence))
    share = num_successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At the ends the formula is exact in real numbers; rounding must not push it past the share.
    low = 0.0 if num_successes == 0 else max(0.0, centre - half)
    high = 1.0 if num_successes == n else min(1.0, centre + half)
    return Interval(share, low, high, n)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """t-interval of the mean of independent values. Values without any spread give a point."""
    return clustered_mean(values, range(len(values)), confidence)


def clustered_mean(
    values: Sequence[float], clusters: Sequence[Hashable], confidence: float = 0.95
) -> Interval:
    """t-interval of the mean of values that come in clusters, such as the attempts at one task.

    SE^2 = G / (G - 1) * sum over clusters (sum of residuals)^2 / n^2, G - 1 degrees of freedom;
    with one value a cluster this is the ordinary s / sqrt(n).

    Example:
        clustered_mean([1, 1, 0, 0], ["a", "a", "b", "b"]).n == 2
    """
    if len(values) != len(clusters):
        raise ValueError(f"{len(values)} values but {len(clusters)} cluster names")
    if not values:
        raise ValueError("no values, so no mean")
    x = np.asarray(values, dtype=np.float64)
    if not np.isfinite(x).all():
        raise ValueError("a value is not finite")
    mean = float(x.mean())
    number: dict[Hashable, int] = {}
    membership = [number.setdefault(cluster, len(number)) for cluster in clusters]
    if len(number) < 2:
        return Interval(mean, -math.inf, math.inf, len(number))
    if float(np.ptp(x)) == 0.0:
        return Interval(float(x[0]), float(x[0]), float(x[0]), len(number))
    residuals = np.bincount(membership, weights=x - mean)
    correction = len(number) / (len(number) - 1)
    error = math.sqrt(correction * float(np.sum(residuals**2))) / len(x)
    half = student_quantile(two_sided(confidence), len(number) - 1) * error
    return Interval(mean, mean - half, mean + half, len(number))
