"""Weights from pass rates: tasks of middling difficulty first."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.environment.curriculum.difficulty import DECAY, PassRates, expected_variance
from practicum.environment.domains import draw_pool, get_domain
from practicum.errors import UsageError
from practicum.types import Task
from practicum.verdicts import TaskResult

POOL = draw_pool([get_domain("addition")], seed=0, split="train", size=300)
EASY = [task for task in POOL.values() if task.difficulty == 0.0]


def result(task: Task, passed: float, counted: int) -> TaskResult:
    return TaskResult(task.id, task.domain, task.difficulty, passed, counted, counted)


@given(passed=st.floats(0.1, 50.0), failed=st.floats(0.1, 50.0))
def test_the_weight_is_the_mean_of_p_times_1_minus_p(passed: float, failed: float) -> None:
    # E[p(1-p)] = E[p] - E[p]^2 - Var[p]
    mean = passed / (passed + failed)
    variance = mean * (1 - mean) / (passed + failed + 1)
    assert expected_variance(passed, failed) == pytest.approx(mean - mean**2 - variance)


def test_the_weight_agrees_with_drawn_pass_rates() -> None:
    rng = random.Random(0)
    drawn = [rng.betavariate(3.0, 5.0) for _ in range(40_000)]
    assert expected_variance(3.0, 5.0) == pytest.approx(
        sum(p * (1 - p) for p in drawn) / len(drawn), rel=0.01
    )


def test_half_solved_tasks_weigh_more_than_hopeless_and_solved_ones() -> None:
    rates = PassRates(POOL)
    hopeless, half, solved = EASY[:3]
    rates.observe([result(hopeless, 0, 8), result(half, 4, 8), result(solved, 8, 8)])
    low, middle, high = rates.weights([hopeless, half, solved])
    assert middle > 2 * low
    assert middle > 2 * high


def test_an_untried_task_borrows_the_mean_of_its_level() -> None:
    rates = PassRates(POOL)
    hard = next(task for task in POOL.values() if task.difficulty == 1.0)
    assert rates.posterior(EASY[5]) == rates.posterior(hard) == (1.0, 1.0)
    rates.observe([result(task, 8, 8) for task in EASY[:4]])
    passed, failed = rates.posterior(EASY[5])
    assert passed + failed == pytest.approx(2.0)
    assert passed / 2.0 == pytest.approx(33 / 34)
    assert rates.posterior(hard) == (1.0, 1.0)


def test_old_observations_fade() -> None:
    rates = PassRates(POOL)
    rates.observe([result(EASY[0], 0, 8)])
    for _ in range(10):
        rates.observe([])
    passed, failed = rates.posterior(EASY[0])
    assert passed + failed == pytest.approx(2.0 + 8 * DECAY**10)


def test_every_task_keeps_a_tenth_of_its_fair_chance() -> None:
    rates = PassRates(POOL)
    for _ in range(50):
        rates.observe([result(EASY[0], 8, 8)])
    weights = rates.weights(EASY)
    assert min(weights) == weights[0] >= 0.1 / len(EASY)
    assert sum(weights) == pytest.approx(1.0)


def test_a_restored_state_gives_the_same_bits() -> None:
    rates, restored = PassRates(POOL), PassRates(POOL)
    rng = random.Random(0)
    for _ in range(20):
        rates.observe(
            [result(t, rng.randint(0, 8), 8) for t in rng.sample(list(POOL.values()), 60)]
        )
    restored.restore(json.loads(json.dumps(rates.state(), sort_keys=True)))
    tasks = list(POOL.values())
    assert rates.weights(tasks) == restored.weights(tasks)


def test_a_report_on_another_pool_is_refused() -> None:
    with pytest.raises(UsageError, match="not in this curriculum's pool"):
        PassRates(POOL).observe([TaskResult("abc", "addition", 0.0, 1, 8, 8)])
