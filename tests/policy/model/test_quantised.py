"""Quantised weights: kernels and plain PyTorch give the same numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.policy.model import quantised
from practicum.policy.model.native import kernels
from practicum.policy.model.native.matrix import Storage

from .needs import needs_kernels, without_kernels


def random(*size: int, seed: int = 0) -> torch.Tensor:
    """With a few values far larger than the others, as activations have them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator)
    return torch.where(torch.rand(size, generator=generator) < 0.01, 30 * x, x).bfloat16()


@needs_kernels
@settings(max_examples=30, deadline=None)
@given(
    num_tokens=st.integers(1, 70),
    steps=st.integers(1, 6),
    num_out=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
def test_int8_by_kernels_equals_plain_int8_bit_for_bit(
    num_tokens: int, steps: int, num_out: int, seed: int
) -> None:
    x, weight = random(num_tokens, 32 * steps, seed=seed), random(num_out, 32 * steps, seed=seed)
    copy = quantised.quantise(weight, "int8")
    values, scales = quantised.rounded(weight)
    assert torch.equal(copy.values, values)
    assert torch.equal(copy.scales, scales)
    bias = torch.arange(num_out) / 7
    assert torch.equal(quantised.linear(x, copy, bias), quantised.plain_linear(x, copy, bias))


@needs_kernels
def test_int4_by_kernels_reads_the_weights_that_plain_int4_decodes() -> None:
    x, weight = random(37, 192), random(83, 192, seed=1)
    copy = quantised.quantise(weight, "int4")
    expected = kernels.linear(x, quantised.decoded(copy))
    assert torch.equal(quantised.linear(x, copy), expected)


@needs_kernels
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_kernels_make_the_copy_that_plain_pytorch_makes(
    kind: Storage,
) -> None:
    weight = random(83, 192)
    weight[7] = 0.0
    native = quantised.quantise(weight, kind)
    with without_kernels():
        plain = quantised.quantise(weight, kind)
    assert torch.equal(native.values, plain.values)
    assert torch.equal(native.scales, plain.scales)


@pytest.mark.parametrize(("kind", "bound"), [("int8", 0.02), ("int4", 0.2)])
def test_a_product_is_near_the_exact_one(kind: Storage, bound: float) -> None:
    x, weight = random(40, 256), random(64, 256, seed=1)
    exact = x.double() @ weight.double().t()
    for function in (quantised.linear, quantised.plain_linear):
        error = function(x, quantised.quantise(weight, kind)).double() - exact
        assert error.square().mean() < bound**2 * exact.square().mean()


def test_spreading_changes_no_product_and_is_its_own_inverse() -> None:
    x, weight = random(5, 128).float(), random(7, 128, seed=1).float()
    product = quantised.spread(x) @ quantised.spread(weight).t()
    torch.testing.assert_close(product, x @ weight.t(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(quantised.spread(quantised.spread(x)), x)


def test_what_is_not_finite_is_not_lost() -> None:
    x, weight = random(3, 64), random(4, 64, seed=1)
    x[1, 5], x[2, 0] = torch.nan, torch.inf
    for function in (quantised.linear, quantised.plain_linear):
        out = function(x, quantised.quantise(weight, "int8"))
        assert out[0].isfinite().all()
        assert not out[1:].isfinite().any()
