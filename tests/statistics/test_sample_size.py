"""The planner against a published-style table and against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from practicum.errors import PracticumError
from practicum.statistics import (
    minimum_detectable_effect,
    paired_difference,
    paired_sd,
    tasks_needed,
)


@pytest.mark.parametrize(
    ("num_tasks", "correlation", "num_trials", "points"),
    [
        (89, 0.0, 1, 19.9),
        (89, 0.8, 1, 15.4),
        (89, 0.8, 5, 8.9),
        (300, 0.8, 5, 4.8),
        (500, 0.0, 1, 8.4),
    ],
)
def test_table_at_a_pass_rate_of_two_thirds(
    num_tasks: int, correlation: float, num_trials: int, points: float
) -> None:
    effect = minimum_detectable_effect(num_tasks, paired_sd(0.66, correlation, num_trials))
    assert 100 * effect == pytest.approx(points, abs=0.06)


def test_the_promised_power_is_there() -> None:
    rng = np.random.default_rng(1)
    effect = minimum_detectable_effect(100, 0.5)
    found = 0
    for _ in range(1500):
        differences = rng.normal(effect, 0.5, size=100)
        after = {str(i): float(d) for i, d in enumerate(differences)}
        found += paired_difference(dict.fromkeys(after, 0.0), after).p_value < 0.05
    assert found / 1500 == pytest.approx(0.8, abs=0.03)


def test_tasks_needed_inverts_the_effect() -> None:
    needed = tasks_needed(0.05, 0.5)
    assert (
        minimum_detectable_effect(needed, 0.5) <= 0.05 < minimum_detectable_effect(needed - 1, 0.5)
    )


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0") as caught:
        tasks_needed(0.0, 0.5)
    assert not isinstance(caught.value, PracticumError)
    with pytest.raises(ValueError, match="at least 1"):
        minimum_detectable_effect(0, 0.5)
    with pytest.raises(ValueError, match="out of range"):
        paired_sd(1.5, 0.0)
