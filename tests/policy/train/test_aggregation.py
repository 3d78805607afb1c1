"""Token weights: the worked example of two sequences of 10 and 100 tokens, and what they sum to."""

import pytest

from practicum.policy.train.aggregation import (
    TokenWeight,
    Totals,
    constant_length,
    sequence_mean,
    token_mean,
)


@pytest.mark.parametrize(
    ("weight", "loss"),
    [(token_mean, 90 / 110), (sequence_mean, 0.0), (constant_length, 90 / 256)],
)
def test_the_worked_example_of_length_normalisation(weight: TokenWeight, loss: float) -> None:
    """Per-token losses of -1 in the short and +1 in the long sequence, L_max = 128."""
    totals = Totals(num_trajectories=2, num_tokens=110, max_response_tokens=128)
    short, long = (weight(length, totals) for length in (10, 100))
    assert -1 * 10 * short + 1 * 100 * long == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("weight", [token_mean, sequence_mean])
def test_means_have_weights_that_sum_to_one(weight: TokenWeight) -> None:
    lengths = [3, 1, 40, 7]
    totals = Totals(len(lengths), sum(lengths), max_response_tokens=64)
    assert sum(n * weight(n, totals) for n in lengths) == pytest.approx(1.0)


def test_dr_grpo_weighs_a_token_the_same_in_every_answer_and_step() -> None:
    short_answers, long_answers = Totals(4, 10, 64), Totals(4, 4000, 64)
    assert constant_length(2, short_answers) == constant_length(2000, long_answers) == 1 / (4 * 64)
