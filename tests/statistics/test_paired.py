"""Paired differences: coverage, worked numbers, zero variance, and mismatched tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.errors import UsageError
from practicum.statistics import difference_bounds, paired_difference


def scores(values: list[float]) -> dict[str, float]:
    return {f"task-{index:03d}": value for index, value in enumerate(values)}


def test_coverage_and_size_of_the_test() -> None:
    """128 binary tasks, correlated before and after; the true difference is 0.2."""
    rng = np.random.default_rng(5)
    covered = false_alarms = 0
    for _ in range(1000):
        before = (rng.random(128) < 0.3).astype(float)
        gained = (before == 0) & (rng.random(128) < 0.2 / 0.7)
        after = np.maximum(before, gained)
        result = paired_difference(scores(before.tolist()), scores(after.tolist()))
        covered += result.low <= 0.2 <= result.high
        other = (rng.random(128) < 0.3).astype(float)
        false_alarms += (
            paired_difference(scores(before.tolist()), scores(other.tolist())).p_value < 0.05
        )
    assert 0.93 <= covered / 1000 <= 0.97
    assert 0.03 <= false_alarms / 1000 <= 0.07


def test_worked_example() -> None:
    result = paired_difference(scores([0, 0, 1, 0, 0]), scores([1, 0, 1, 1, 0]))
    assert result.mean == pytest.approx(0.4)
    assert result.low == pytest.approx(0.4 - 2.776445 * math.sqrt(0.3 / 5), rel=1e-6)
    assert result.p_value == pytest.approx(0.17781, abs=1e-5)
    assert result.n == 5


def test_the_order_of_tasks_does_not_matter() -> None:
    before, after = scores([0, 0.5, 1]), scores([1, 0.5, 0.7])
    shuffled = dict(reversed(after.items()))
    assert paired_difference(before, shuffled) == paired_difference(before, after)


def test_no_change_anywhere_is_no_difference_with_the_rule_of_three() -> None:
    same = scores([0, 1] * 64)
    result = paired_difference(same, same)
    assert (result.mean, result.p_value) == (0.0, 1.0)
    assert result.high == -result.low == pytest.approx(1 - 0.025 ** (1 / 128))


def test_a_change_on_every_task_is_certain_only_with_many_tasks() -> None:
    few = paired_difference(scores([0] * 3), scores([1] * 3))
    assert few.low < 0.0 < few.mean == few.high == 1.0
    assert few.p_value == 0.25
    many = paired_difference(scores([0] * 128), scores([1] * 128))
    assert many.low == pytest.approx(1 - 2 * (1 - 0.025 ** (1 / 128)))
    assert many.p_value < 1e-30


def test_equal_differences_of_unbounded_scores_have_no_interval() -> None:
    result = paired_difference(scores([-3.0, 2.0]), scores([-2.0, 3.0]))
    assert (result.mean, result.low, result.high) == (1.0, -math.inf, math.inf)


def test_different_tasks_are_refused_with_examples() -> None:
    with pytest.raises(UsageError, match=r"1 only before, 2 only after, such as 'a', 'c', 'd'"):
        paired_difference({"a": 1.0, "b": 1.0}, {"b": 1.0, "c": 1.0, "d": 0.0})
    with pytest.raises(UsageError, match="no task"):
        paired_difference({}, {})


def test_bounds_hold_whatever_the_unscored_would_have_been() -> None:
    before, after = {"a": 0.0, "b": None}, {"a": 1.0, "b": 1.0}
    assert difference_bounds(before, after) == (0.5, 1.0)


unit_or_none = st.one_of(st.none(), st.floats(0, 1))


@given(st.lists(st.tuples(unit_or_none, unit_or_none, st.floats(0, 1)), min_size=1, max_size=12))
def test_any_filling_lies_within_the_bounds(
    rows: list[tuple[float | None, float | None, float]],
) -> None:
    before = {str(i): row[0] for i, row in enumerate(rows)}
    after = {str(i): row[1] for i, row in enumerate(rows)}
    low, high = difference_bounds(before, after)
    filled_before = {i: row[2] if (v := before[i]) is None else v for i, row in zip(before, rows)}
    filled_after = {i: 1 - row[2] if (v := after[i]) is None else v for i, row in zip(after, rows)}
    difference = paired_difference(filled_before, filled_after)
    assert low - 1e-12 <= difference.mean <= high + 1e-12
    assert -1.0 <= difference.low <= difference.mean + 1e-12
    assert difference.mean - 1e-12 <= difference.high <= 1.0
