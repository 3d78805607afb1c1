"""Draws follow the softmax exactly, one uniform each, and impossible tokens are never drawn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from practicum.policy.engine.sampling import all_finite, sample, uniforms

ALMOST_ONE = math.nextafter(1.0, 0.0)


def draw(
    logits: torch.Tensor, rows: list[int], temperatures: list[float], numbers: list[float]
) -> tuple[list[int], list[float]]:
    token_ids, logprobs = sample(
        logits.clone(),
        torch.tensor(rows),
        torch.tensor(temperatures, dtype=torch.float64),
        torch.tensor(numbers, dtype=torch.float64),
    )
    return token_ids.tolist(), logprobs.tolist()


def some_logits(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def test_a_uniform_depends_on_seed_and_position_only() -> None:
    assert uniforms(5, 3).tolist() == uniforms(5, 100)[:3].tolist()
    assert uniforms(5, 3).tolist() != uniforms(6, 3).tolist()
    assert len(uniforms(-1, 2)) == len(uniforms(2**70, 2)) == 2


def test_first_uniforms_of_consecutive_seeds_are_uniform() -> None:
    """Seeds of a run are neighbours; their streams must not be."""
    numbers = np.array([uniforms(seed, 2) for seed in range(5000)])
    assert stats.kstest(numbers[:, 0], "uniform").pvalue > 0.01
    assert abs(stats.pearsonr(numbers[:-1, 0], numbers[1:, 0]).statistic) < 0.05
    assert abs(stats.pearsonr(numbers[:, 0], numbers[:, 1]).statistic) < 0.05


@pytest.mark.parametrize("vocab_size", [3, 256, 259, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_tokens_are_those_of_the_inverse_cumulative_distribution(
    vocab_size: int, temperature: float
) -> None:
    logits = some_logits(1, vocab_size)
    numbers = uniforms(1, 4000)
    token_ids, logprobs = draw(logits, [0] * 4000, [temperature] * 4000, numbers.tolist())
    exact = torch.log_softmax(logits[0].double() / temperature, 0)
    expected = np.searchsorted(exact.exp().cumsum(0).numpy(), numbers, side="right")
    assert np.mean(np.array(token_ids) == expected) > 0.999  # float32 moves a border a little
    np.testing.assert_allclose(logprobs, exact[token_ids], atol=2e-6)


def test_draws_pass_a_goodness_of_fit_test() -> None:
    logits = some_logits(1, 300)
    token_ids, _ = draw(logits, [0] * 50_000, [1.0] * 50_000, uniforms(2, 50_000).tolist())
    expected = torch.softmax(logits[0].double(), 0).numpy() * 50_000
    observed = np.bincount(token_ids, minlength=300)
    rare = expected < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    assert stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue > 0.001


@settings(deadline=None)
@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=600),
    st.sets(st.integers(0, 599)),
    st.sampled_from([0.0, 1e-300, 0.25, 0.5, 0.999999, ALMOST_ONE]),
    st.sampled_from([0.0, 1e-30, 0.1, 1.0, 50.0]),
)
def test_an_impossible_token_is_never_drawn(
    values: list[float], impossible: set[int], number: float, temperature: float
) -> None:
    logits = torch.tensor([values])
    keep = int(logits.argmax())
    for token in impossible - {keep}:
        if token < len(values):
            logits[0, token] = -torch.inf
    (token_id,), (logprob,) = draw(logits, [0], [temperature], [number])
    assert logits[0, token_id] > -torch.inf
    assert math.isfinite(logprob)
    assert logprob <= 0.0


def test_the_largest_uniform_draws_the_last_possible_token() -> None:
    """The sum of a block in float32 and token by token in float64 differ, either way."""
    logits = some_logits(200, 400)
    logits[:, 350:] = -torch.inf
    token_ids, _ = draw(logits, list(range(200)), [1.0] * 200, [ALMOST_ONE] * 200)
    assert set(token_ids) <= set(range(330, 350))


def test_greedy_takes_the_first_likeliest_at_the_logprob_of_temperature_one() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
    (token_id,), (logprob,) = draw(logits, [0], [0.0], [0.9])
    assert token_id == 1
    assert logprob == pytest.approx(torch.log_softmax(logits[0].double(), 0)[1].item(), abs=1e-6)


def test_every_draw_has_its_own_row_temperature_and_number() -> None:
    logits = some_logits(4, 500)
    rows, temperatures = [2, 0, 2, 3, 0, 2], [1.0, 0.0, 0.7, 1.0, 0.7, 1.0]
    numbers = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    together = draw(logits, rows, temperatures, numbers)
    apart = [
        draw(logits[row : row + 1], [0], [temperature], [number])
        for row, temperature, number in zip(rows, temperatures, numbers, strict=True)
    ]
    assert together[0] == [ids[0] for ids, _ in apart]
    assert together[1] == pytest.approx([logprobs[0] for _, logprobs in apart], abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_without_a_distribution_is_noticed(bad: float) -> None:
    logits = some_logits(3, 50)
    assert all_finite(logits)
    logits[1, 7] = -math.inf
    assert all_finite(logits)
    logits[1, 8] = bad
    assert not all_finite(logits)
