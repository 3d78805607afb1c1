"""What guesses are worth, what steps cost, and what is chosen: each alone, with known numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.policy.engine.speculation import Guess
from practicum.policy.engine.speculation.acceptance import Acceptance
from practicum.policy.engine.speculation.choice import LEAST_GAIN, choose
from practicum.policy.engine.speculation.cost import FLAT_ROWS, STALE_STEPS, StepCost
from practicum.policy.engine.speculation.ledger import LISTEN_SHARE, Ledger

GAINS = st.lists(
    st.lists(st.floats(0, 1), max_size=3).map(lambda gains: sorted(gains, reverse=True)),
    min_size=1,
    max_size=3,
)


@settings(deadline=None)
@given(GAINS, st.floats(0, 50))
def test_the_chosen_guesses_are_the_best_of_all_sets(
    gains: list[list[float]], fixed: float
) -> None:
    def seconds(rows: int) -> float:
        return fixed + rows**1.2

    def rate(counts: tuple[int, ...]) -> float:
        tokens = len(gains) + sum(sum(mine[:count]) for mine, count in zip(gains, counts))
        return tokens / seconds(len(gains) + sum(counts))

    choice = choose(gains, len(gains), len(gains), seconds)
    best = max(rate(c) for c in itertools.product(*(range(len(mine) + 1) for mine in gains)))
    if any(choice.counts):
        assert rate(choice.counts) == pytest.approx(best)
        assert choice.saved_s > 0
    else:
        assert best <= LEAST_GAIN * rate((0,) * len(gains)) * (1 + 1e-9)
        assert choice.saved_s == 0


def test_a_free_row_is_always_used_and_a_dear_one_never() -> None:
    assert choose([[0.9, 0.5], [0.1]], 2, 2, lambda rows: 1.0).counts == (2, 1)
    assert choose([[0.9, 0.5], [0.1]], 2, 2, lambda rows: float(rows)).counts == (0, 0)


def test_the_cost_curve_never_falls_and_follows_what_was_measured() -> None:
    cost = StepCost()
    rng = np.random.default_rng(0)
    for _ in range(400):
        rows = int(rng.integers(1, 200))
        cost.observe(rows, (30 + rows) * rng.uniform(0.8, 1.2))
    curve = [cost.seconds(rows) for rows in range(1, 400)]
    assert all(a <= b for a, b in itertools.pairwise(curve))
    np.testing.assert_allclose(curve, [30 + rows for rows in range(1, 400)], rtol=0.2)


def test_unmeasured_costs_are_extrapolated_and_said_to_be_unmeasured() -> None:
    cost = StepCost()
    cost.observe(20, 2.0)
    assert cost.measured(20)
    assert not cost.measured(40)
    assert cost.seconds(40) == pytest.approx(2.0 * (FLAT_ROWS + 40) / (FLAT_ROWS + 20))
    assert cost.seconds(1) == pytest.approx(2.0 * (FLAT_ROWS + 1) / (FLAT_ROWS + 20))


def test_a_pause_of_the_machine_does_not_become_a_cost() -> None:
    cost = StepCost()
    for _ in range(20):
        cost.observe(8, 1.0)
    cost.observe(8, 1000.0)
    assert cost.seconds(8) < 1.5


def test_costs_of_long_ago_are_forgotten() -> None:
    cost = StepCost()
    cost.observe(64, 9.0)
    for _ in range(STALE_STEPS):
        cost.observe(8, 1.0)
    assert not cost.measured(64)


def test_confidence_is_believed_until_it_was_measured() -> None:
    acceptance = Acceptance()
    assert acceptance.probability("p", 1, 0.3) == pytest.approx(0.3)
    for number in range(300):
        guess = [Guess(5, 0.3)]
        acceptance.score("p", ("old", number), guess, [5 if number % 4 else 6])
    assert acceptance.probability("p", 1, 0.3) == pytest.approx(0.75, abs=0.03)
    assert acceptance.probability("q", 1, 0.3) == pytest.approx(0.3)
    assert acceptance.probability("p", 1, 0.9) == pytest.approx(0.9)


def test_a_request_that_defies_the_average_is_noticed_and_forgotten_with_it() -> None:
    acceptance = Acceptance()
    for number in range(200):
        acceptance.score("p", number % 2, [Guess(5, 0.5)], [5 if number % 2 else 6])
    assert acceptance.probability("p", 1, 0.5) > 0.8
    assert acceptance.probability("p", 0, 0.5) < 0.2
    acceptance.forget(0)
    assert acceptance.probability("p", 0, 0.5) == pytest.approx(0.5, abs=0.1)


def test_guesses_after_a_wrong_one_are_not_scored() -> None:
    """They were made for a past that never came."""
    acceptance = Acceptance()
    for number in range(100):
        acceptance.score("p", number, [Guess(1, 0.1), Guess(2, 0.9)], [9, 2])
    assert acceptance.probability("p", "new", 0.9) == pytest.approx(0.9)
    assert acceptance.probability("p", "new", 0.1) < 0.05


def test_a_loser_rests_is_heard_within_its_allowance_and_wakes_with_the_first_gain() -> None:
    ledger = Ledger(8)
    ledger.book(saved_s=0.0, cost_s=0.01, deepest=0)
    assert ledger.resting
    heard = 0
    for _ in range(1000):
        ledger.allow(step_s=0.1)
        if ledger.may_propose:
            heard += 1
            ledger.book(saved_s=0.0, cost_s=0.01, deepest=0)
    assert heard * 0.01 <= LISTEN_SHARE * 1000 * 0.1
    assert heard > 30
    assert ledger.reach < 5
    ledger.book(saved_s=0.02, cost_s=0.01, deepest=4)
    assert not ledger.resting
    assert ledger.reach == 5
