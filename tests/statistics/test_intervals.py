"""Every interval covers the truth about as often as it says, by seeded simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from practicum.statistics import Interval, clustered_mean, mean_interval, wilson


@pytest.mark.parametrize(("n", "p"), [(30, 0.02), (30, 0.95), (89, 0.66), (500, 0.02)])
def test_wilson_covers_the_share(n: int, p: float) -> None:
    draws = np.random.default_rng(7).binomial(n, p, size=2000)
    covered = [
        interval.low <= p <= interval.high for interval in (wilson(int(c), n) for c in draws)
    ]
    assert 0.93 <= np.mean(covered) <= 0.985


def test_wilson_worked_example() -> None:
    interval = wilson(13, 16)
    assert interval.low == pytest.approx(0.56991, abs=1e-5)
    assert interval.high == pytest.approx(0.93408, abs=1e-5)


@pytest.mark.parametrize("n", [1, 4, 128])
def test_wilson_stays_inside_the_unit_interval_and_touches_its_ends(n: int) -> None:
    none, every = wilson(0, n), wilson(n, n)
    assert none.low == 0.0 < none.high < 1.0
    assert every.high == 1.0 > every.low > 0.0


def test_mean_interval_covers_the_mean_of_few_values() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(2000):
        interval = mean_interval(rng.normal(0.4, 2.0, size=5).tolist())
        covered += interval.low <= 0.4 <= interval.high
    assert 0.93 <= covered / 2000 <= 0.97


def test_clustering_covers_where_counting_repeats_as_samples_does_not() -> None:
    """30 tasks of varying difficulty, 5 attempts each."""
    rng = np.random.default_rng(11)
    tasks = np.repeat(np.arange(30), 5)
    clustered = naive = 0
    for _ in range(1500):
        pass_rates = rng.beta(0.66, 0.34, size=30)
        scores = rng.binomial(1, pass_rates[tasks]).astype(float).tolist()
        honest, wrong = clustered_mean(scores, tasks.tolist()), mean_interval(scores)
        clustered += honest.low <= 0.66 <= honest.high
        naive += wrong.low <= 0.66 <= wrong.high
    assert 0.925 <= clustered / 1500 <= 0.97
    assert naive / 1500 < 0.80


def test_clusters_of_one_give_the_ordinary_interval() -> None:
    values = [0.1, 0.5, 0.9, 0.4]
    sd = float(np.std(values, ddof=1))
    interval = mean_interval(values)
    assert interval.high - interval.mean == pytest.approx(3.182446 * sd / 2, rel=1e-6)
    assert clustered_mean(values, list("abcd")) == interval


def test_one_cluster_says_nothing_about_spread() -> None:
    interval = clustered_mean([1.0, 1.0, 0.0], ["a", "a", "a"])
    assert interval.mean == pytest.approx(2 / 3)
    assert (interval.low, interval.high, interval.n) == (-math.inf, math.inf, 1)


def test_equal_values_give_a_point_without_rounding() -> None:
    assert mean_interval([0.1] * 10) == Interval(0.1, 0.1, 0.1, 10)


def test_impossible_input_is_refused() -> None:
    with pytest.raises(ValueError, match="not a share"):
        wilson(5, 4)
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
    with pytest.raises(ValueError, match="not finite"):
        mean_interval([1.0, math.nan])
    with pytest.raises(ValueError, match="cluster names"):
        clustered_mean([1.0], ["a", "b"])
    with pytest.raises(ValueError, match="confidence"):
        wilson(1, 2, confidence=95)
