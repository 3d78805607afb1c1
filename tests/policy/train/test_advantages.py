"""Advantages: the worked examples, and what holds for all rewards."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from practicum.policy.train.advantages import centred, has_spread, standardised

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


def test_one_success_in_four_gives_the_advantages_of_the_sample_deviation() -> None:
    assert standardised([1.0, 0.0, 0.0, 0.0]) == [1.5, -0.5, -0.5, -0.5]
    assert centred([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("rewards", [[0.1] * 3, [1.0] * 8, [0.1 + 0.2, 0.3, 0.3], [0.7], []])
def test_rewards_that_agree_give_exactly_zero(rewards: list[float]) -> None:
    """Also where rounding makes the mean differ from every reward, and for a group of one."""
    assert centred(rewards) == standardised(rewards) == [0.0] * len(rewards)


@given(REWARDS)
def test_advantages_are_centred_and_standardised_ones_have_unit_deviation(
    rewards: list[float],
) -> None:
    assert math.fsum(centred(rewards)) == pytest.approx(0.0, abs=1e-9)
    if has_spread(rewards):
        tensor = torch.tensor(rewards, dtype=torch.float64)
        expected = (tensor - tensor.mean()) / tensor.std()
        assert standardised(rewards) == pytest.approx(expected.tolist(), abs=1e-7)


@given(REWARDS, st.floats(-5, 5), st.floats(0.5, 4))
def test_grpo_sees_neither_shift_nor_scale_of_rewards(
    rewards: list[float], shift: float, scale: float
) -> None:
    moved = [reward * scale + shift for reward in rewards]
    if has_spread(rewards) and has_spread(moved):
        assert standardised(moved) == pytest.approx(standardised(rewards), abs=1e-6)
