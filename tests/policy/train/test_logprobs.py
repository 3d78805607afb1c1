"""The chunked log-probabilities against their plain definition: values and gradients."""

import pytest
import torch
from torch import Tensor

from practicum.policy.train.logprobs import plain_token_logprobs, token_logprobs

V, D = 50, 8


def problem(seed: int, rows: int = 11, targets: int = 40) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Several targets of one row, some of them the same token, and rows in no order."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, D, dtype=torch.float64, generator=generator).requires_grad_()
    head = torch.randn(V, D, dtype=torch.float64, generator=generator).requires_grad_()
    which = torch.randint(rows, (targets,), generator=generator)
    return hidden, head, which, torch.randint(4, (targets,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_logits", [1, V * 3, V * 4, V * 11, V * 100])
def test_fast_and_plain_agree_in_values_and_gradients(
    chunk_logits: int, temperature: float
) -> None:
    hidden, head, rows, targets = problem(0)
    coefficients = torch.randn(len(rows), dtype=torch.float64)
    plain = plain_token_logprobs(hidden, head, rows, targets, temperature)
    fast = token_logprobs(hidden, head, rows, targets, temperature, None, chunk_logits)
    assert torch.allclose(fast.logprobs_M, plain.logprobs_M, rtol=1e-12)
    assert torch.allclose(fast.entropy_R, plain.entropy_R, rtol=1e-12)
    assert not fast.entropy_R.requires_grad
    expected = torch.autograd.grad((plain.logprobs_M * coefficients).sum(), (hidden, head))
    found = torch.autograd.grad((fast.logprobs_M * coefficients).sum(), (hidden, head))
    for left, right in zip(found, expected):
        assert torch.allclose(left, right, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_the_head_is_added_into_an_existing_buffer() -> None:
    hidden, head, rows, targets = problem(1)
    token_logprobs(hidden, head, rows, targets, 1.0).logprobs_M.sum().backward()
    assert head.grad is not None
    once, buffer = head.grad.clone(), head.grad
    token_logprobs(hidden, head, rows, targets, 1.0, None, V * 5).logprobs_M.sum().backward()
    assert head.grad is buffer
    assert torch.allclose(buffer, 2 * once)


def test_the_gradient_passes_a_numerical_check() -> None:
    hidden, head, rows, targets = problem(2, rows=3, targets=5)

    def logprobs(hidden: Tensor, head: Tensor) -> Tensor:
        return token_logprobs(hidden, head, rows, targets, 0.8, None, V * 2).logprobs_M

    assert torch.autograd.gradcheck(logprobs, (hidden, head * 1.0))


def test_in_single_precision_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[200.0], [-200.0]])
    head = torch.linspace(-1, 1, V)[:, None]
    found = token_logprobs(hidden, head, torch.tensor([0, 1]), torch.tensor([0, 0]), 1.0)
    assert found.logprobs_M.tolist() == pytest.approx([-400.0, 0.0], abs=1e-2)
    assert bool(found.entropy_R.isfinite().all())
