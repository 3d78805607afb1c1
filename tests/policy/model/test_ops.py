"""The arithmetic: every kernel beside its plain form, and every row by itself, bit for bit."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from practicum.policy.model import ops
from practicum.policy.model.native import kernels
from practicum.policy.model.paged import PAGE, Reading, attend, put
from practicum.policy.model.shape import AttentionRule

from .needs import EXTRA, HALF_ULP, needs_kernels, threads, without_kernels

bf16 = torch.bfloat16
EPS = 1e-5
KINDS: tuple[ops.Activation, ...] = ("silu", "gelu_tanh")


def normal(*size: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = bf16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator, dtype=torch.float64) * scale).to(dtype)


def exact_norm(x: Tensor, weight: Tensor, plus_one: bool) -> Tensor:
    x, weight = x.double(), weight.double() + plus_one
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def exact_gate(gate_up: Tensor, kind: ops.Activation) -> Tensor:
    gated, up = gate_up.double().chunk(2, -1)
    if kind == "silu":
        return gated / (1 + (-gated).exp()) * up
    inner = math.sqrt(2 / math.pi) * (gated + 0.044715 * gated**3)
    return 0.5 * gated * (1 + inner.tanh()) * up


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """`found` is `exact` rounded to bfloat16, give or take what float32 adds."""
    assert found.dtype == bf16
    error = (found.double() - exact).abs() - HALF_ULP * EXTRA * exact.abs()
    assert error.max() < 1e-30, error.max()


@needs_kernels
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("size", [32, 96, 576])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_the_norm_is_the_exact_one_rounded_once(size: int, plus_one: bool, scale: float) -> None:
    x = normal(40, size, scale=scale, dtype=torch.float32)
    weight = normal(size, seed=1)
    found = ops.rms_norm(x, weight, EPS, plus_one=plus_one)
    assert_rounded(found, exact_norm(x, weight, plus_one))
    assert_rounded(ops.plain_rms_norm(x, weight, EPS, plus_one), exact_norm(x, weight, plus_one))


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_the_gate_is_the_exact_one_rounded_once(kind: ops.Activation) -> None:
    x = torch.linspace(-12, 12, 64 * 150).view(150, 64)
    gate_up = torch.cat((x, normal(150, 64, dtype=torch.float32)), -1)
    found, plain = ops.gate(gate_up, kind, bf16), ops.plain_gate(gate_up, kind, bf16)
    exact = exact_gate(gate_up, kind)
    # Far below zero both activations are a difference of numbers near one: absolute error counts.
    for values in (found, plain):
        error = (values.double() - exact).abs()
        assert (error <= HALF_ULP * EXTRA * exact.abs() + 1e-6).all()


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_the_gate_keeps_its_limits(kind: ops.Activation) -> None:
    gate_up = torch.tensor([[-1e4, 1e4, 0.0, -90.0] * 8 + [1.0] * 32])
    found = ops.gate(gate_up, kind, bf16)[0, :4].tolist()
    assert found == pytest.approx([0.0, 1e4, 0.0, 0.0], rel=HALF_ULP, abs=1e-30)


SIZES = [(32, 16), (32, 1), (64, 259), (160, 33), (576, 97), (96, 64)]


@needs_kernels
@pytest.mark.parametrize(("depth", "width"), SIZES)
def test_a_product_has_the_same_bits_whatever_number_of_rows(depth: int, width: int) -> None:
    x, weight, bias = normal(130, depth), normal(width, depth, seed=1), normal(width, seed=2)
    whole = ops.linear(x, weight, bias)
    # Products of bfloat16 are exact in float32; what is lost is lost in at most `depth` sums.
    exact = x.double() @ weight.double().T + bias.double()
    size = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert ((whole.double() - exact).abs() <= (depth + 1) * 2.0**-24 * size).all()
    for rows in range(1, 131):
        assert torch.equal(ops.linear(x[:rows], weight, bias), whole[:rows]), rows
        assert torch.equal(ops.linear(x[130 - rows :], weight, bias), whole[130 - rows :]), rows


@needs_kernels
def test_a_bias_is_added_to_the_product_and_rounded_once() -> None:
    for width in (3, 16, 100, 259, 576):
        x, weight, bias = normal(7, 64), normal(width, 64, seed=1), normal(width, seed=2)
        assert torch.equal(ops.linear(x, weight, bias), ops.linear(x, weight) + bias)


@needs_kernels
@given(rows=st.integers(0, 300), width=st.integers(1, 70), steps=st.integers(1, 6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_product_of_any_sizes_equals_its_rows_alone(rows: int, width: int, steps: int) -> None:
    x, weight = normal(rows, 32 * steps), normal(width, 32 * steps, seed=1)
    whole = ops.linear(x, weight)
    assert whole.shape == (rows, width)
    alone = [ops.linear(row[None], weight) for row in x]
    assert torch.equal(torch.cat([whole[:0], *alone]), whole)


@needs_kernels
def test_tensors_of_more_dimensions_and_strides_are_taken_as_their_rows() -> None:
    x, weight = normal(6, 5, 64), normal(40, 64, seed=1)
    flat = ops.linear(x.flatten(0, 1), weight)
    assert torch.equal(ops.linear(x, weight).flatten(0, 1), flat)
    turned = ops.linear(x.transpose(0, 1), weight)
    assert torch.equal(turned.transpose(0, 1).flatten(0, 1), flat)
    wide = x.float()
    norm = ops.rms_norm(wide.transpose(0, 1), normal(64, seed=2), EPS)
    assert torch.equal(norm.transpose(0, 1), ops.rms_norm(wide, normal(64, seed=2), EPS))


@needs_kernels
def test_one_thread_and_two_give_the_same_bits() -> None:
    x, norm = normal(300, 576, dtype=torch.float32), normal(576, seed=1)
    up, down = normal(640, 576, seed=2, scale=0.05), normal(576, 320, seed=3, scale=0.05)
    found: list[list[Tensor]] = []
    for count in (1, 2):
        with threads(count):
            normed = ops.rms_norm(x, norm, EPS)
            product = ops.linear(normed, up)
            gated = ops.gate(product, "silu", bf16)
            residual = x.clone()
            kernels.add_mlp_(residual, norm, EPS, False, up, down, "silu")
            found.append([normed, product, gated, residual])
    assert all(torch.equal(one, two) for one, two in zip(*found))


@needs_kernels
@pytest.mark.parametrize("rows", [1, 5, 16, 95, 97, 200])
@pytest.mark.parametrize("plus_one", [False, True])
def test_fused_kernels_have_the_bits_of_their_parts(rows: int, plus_one: bool) -> None:
    x, norm = normal(rows, 96, dtype=torch.float32), normal(96, seed=1)
    up, down = normal(2 * 160, 96, seed=2, scale=0.1), normal(96, 160, seed=3, scale=0.1)
    normed = ops.rms_norm(x, norm, EPS, plus_one=plus_one)
    for bias in (None, normal(320, seed=4)):
        together = kernels.norm_linear(x, norm, EPS, plus_one, up, bias)
        assert torch.equal(together, ops.linear(normed, up, bias))
    for kind in KINDS:
        gated = ops.gate(ops.linear(normed, up), kind, bf16)
        residual = x.clone()
        kernels.add_linear_(residual, gated, down)
        assert torch.equal(residual, x + ops.linear(gated, down))
        changed = x.clone()
        kernels.add_mlp_(changed, norm, EPS, plus_one, up, down, kind)
        assert torch.equal(changed, residual)


@needs_kernels
@pytest.mark.parametrize(("num_heads", "num_kv", "size"), [(9, 3, 64), (4, 1, 32), (2, 2, 128)])
def test_rotating_into_pages_has_the_bits_of_rotating_and_putting(
    num_heads: int, num_kv: int, size: int
) -> None:
    tokens, total = 45, num_heads + 2 * num_kv
    qkv = normal(tokens, total * size, dtype=torch.float32)
    angles = torch.arange(tokens)[:, None] * torch.logspace(0, -3, size // 2)
    cos, sin = (table.repeat(1, 2)[:, None] for table in (angles.cos(), angles.sin()))
    heads = qkv.unflatten(-1, (total, size))
    query, key, value = heads.split((num_heads, num_kv, num_kv), dim=1)
    reading = Reading.of([([2, 0], 3, tokens)])
    apart, fused = torch.zeros(2, 3, 2, num_kv, PAGE * size, dtype=bf16)
    put(apart, ops.rotate(key, cos, sin).to(bf16), value.to(bf16), reading.slots())
    found = kernels.rotate_and_put(
        qkv, angles.cos(), angles.sin(), num_heads, size, fused, reading.slots()
    )
    assert torch.equal(found, ops.rotate(query, cos, sin).to(bf16))
    assert torch.equal(fused, apart)
    assert attend(fused, found, reading, AttentionRule(size**-0.5)).isfinite().all()


def gradients(compute: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Of a sum with unequal coefficients, so that no error cancels."""
    own = [tensor.clone().requires_grad_() for tensor in inputs]
    output = compute(*own)
    coefficients = normal(*output.shape, seed=9, dtype=torch.float32).to(output.dtype)
    return list(torch.autograd.grad((output * coefficients).sum(), own))


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_norm_and_gate_are_those_of_the_plain_forms(kind: ops.Activation) -> None:
    x, weight = normal(20, 64, dtype=torch.float32), normal(64, seed=1)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return ops.rms_norm(x, weight, EPS)

    def gate(x: Tensor) -> Tensor:
        return ops.gate(x, kind, bf16)

    found = gradients(norm, x, weight) + gradients(gate, x)
    with without_kernels():
        plain = gradients(norm, x, weight) + gradients(gate, x)
    assert all(torch.equal(one, other) for one, other in zip(found, plain))


@needs_kernels
def test_gradients_of_a_product_are_two_products_rounded_to_bfloat16() -> None:
    x, weight, bias = normal(50, 96), normal(40, 96, seed=1), normal(40, seed=2)
    found = gradients(ops.linear, x, weight, bias)
    exact = gradients(ops.linear, x.double(), weight.double(), bias.double())
    # What comes in is rounded once, and what goes out once more.
    coefficients = normal(50, 40, seed=9, dtype=torch.float32).double().abs()
    sums = (coefficients @ weight.double().abs(), coefficients.T @ x.double().abs())
    for gradient, truth, terms in zip(found, exact, (*sums, coefficients.sum(0))):
        assert gradient.dtype == bf16
        assert ((gradient - truth).abs() <= HALF_ULP * EXTRA * (truth.abs() + terms)).all()


def test_a_gradient_reaches_the_bias_though_nothing_else_needs_one() -> None:
    x, weight = normal(5, 32), normal(8, 32, seed=1)
    bias = normal(8, seed=2).requires_grad_()
    ops.linear(x, weight, bias).sum().backward()
    assert bias.grad is not None
    assert bias.grad.tolist() == [5.0] * 8


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_in_other_dtypes_the_plain_forms_compute_the_definition(
    dtype: torch.dtype, tolerance: float
) -> None:
    x, weight = normal(9, 48, dtype=dtype), normal(48, seed=1, dtype=dtype)
    matrix, bias = normal(7, 48, seed=2, dtype=dtype), normal(7, seed=3, dtype=dtype)
    pairs = [
        (ops.rms_norm(x, weight, EPS), exact_norm(x, weight, False)),
        (ops.rms_norm(x, weight, EPS, plus_one=True), exact_norm(x, weight, True)),
        (ops.linear(x, matrix, bias), x.double() @ matrix.double().T + bias.double()),
        *((ops.gate(x, kind, dtype), exact_gate(x, kind)) for kind in KINDS),
    ]
    for found, exact in pairs:
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance * 10)


def test_gradients_in_double_precision_pass_a_numerical_check() -> None:
    x, weight = (normal(3, 8, dtype=torch.float64), normal(8, seed=1, dtype=torch.float64))
    matrix = normal(4, 8, seed=2, dtype=torch.float64)
    for tensor in (x, weight, matrix):
        tensor.requires_grad_()

    def check(compute: Callable[..., Tensor], *inputs: Tensor) -> None:
        assert torch.autograd.gradcheck(compute, inputs)

    check(lambda x, w: ops.rms_norm(x, w, EPS, plus_one=True), x, weight)
    check(lambda x, m: ops.softcap(ops.linear(x, m), 3.0), x, matrix)
    for kind in KINDS:
        check(lambda x, kind=kind: ops.gate(x, kind, torch.float64), x)
