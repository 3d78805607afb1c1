"""Matrix products by the compiled kernels: right, and the same for a token in any company."""

from typing import Literal

import pytest
import torch

from practicum.policy.model.native import kernels
from practicum.policy.model.native.matrix import Storage
from practicum.policy.model.quantised import quantise

from .needs import needs_kernels

pytestmark = needs_kernels

SIZES = [(32, 8), (192, 259), (576, 96), (1536, 64)]
"""In features, out features: short of a step of int8, of a group of 16 rows, and long."""


def random(*size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator)


def length(rows: torch.Tensor) -> torch.Tensor:
    return rows.double().square().sum(-1).sqrt()


@pytest.mark.parametrize(("size", "num_out"), SIZES)
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 33, 700])
def test_a_product_is_that_of_float64_to_rounding(num_tokens: int, size: int, num_out: int) -> None:
    x, weight = random(num_tokens, size).bfloat16(), random(num_out, size, seed=1).bfloat16()
    bias = random(num_out, seed=2)
    exact = x.double() @ weight.double().t() + bias.double()
    bound = 1e-6 * size**0.5 * (length(x)[:, None] * length(weight))
    assert ((kernels.linear(x, weight, bias) - exact).abs() <= bound + 1e-6).all()


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_a_token_has_the_same_bits_in_any_company(kind: Storage | Literal["bf16"]) -> None:
    x, weight = random(700, 576).bfloat16(), random(96, 576, seed=1).bfloat16()
    used = weight if kind == "bf16" else quantise(weight, kind)
    everything = kernels.linear(x, used)
    for count in (1, 2, 15, 17, 32, 64, 100, 255, 699):
        assert torch.equal(kernels.linear(x[:count], used), everything[:count])
        assert torch.equal(kernels.linear(x[-count:], used), everything[-count:])


def test_results_too_many_for_the_caches_are_the_same_as_few() -> None:
    """Those are written past the caches."""
    x, weight = random(300, 64).bfloat16(), random(1024, 64, seed=1).bfloat16()
    everything = kernels.linear(x, weight)
    few = torch.cat([kernels.linear(x[i : i + 30], weight) for i in range(0, 300, 30)])
    assert torch.equal(everything, few)


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_fused_kernels_give_the_bits_of_their_parts(kind: Storage | Literal["bf16"]) -> None:
    num_tokens, size, inner = 37, 192, 320
    x, norm = random(num_tokens, size), 1 + 0.1 * random(size, seed=1).bfloat16()
    weights = [
        random(*shape, seed=seed).bfloat16() * 0.1
        for seed, shape in enumerate([(96, size), (2 * inner, size), (size, inner)])
    ]
    qkv, gate_up, down = weights if kind == "bf16" else [quantise(w, kind) for w in weights]
    normed = kernels.rms_norm(x, norm, 1e-5, False)
    projected = kernels.norm_linear(x, norm, 1e-5, False, qkv, None)
    assert torch.equal(projected, kernels.linear(normed, qkv))
    gated = kernels.gate(kernels.linear(normed, gate_up), "silu")
    expected = x + kernels.linear(gated, down)
    kernels.add_mlp_(x, norm, 1e-5, False, gate_up, down, "silu")
    assert torch.equal(x, expected)


@pytest.mark.parametrize("kind", ["bf16", "int8"])
@pytest.mark.parametrize("num_rows", [3, 300])
def test_the_head_gives_the_logits_of_a_product(
    num_rows: int, kind: Storage | Literal["bf16"]
) -> None:
    hidden, weight = random(num_rows, 64).bfloat16(), random(1000, 64, seed=1).bfloat16()
    used = weight if kind == "bf16" else quantise(weight, kind)
    logits, peaks, totals = kernels.head(hidden, used, torch.ones(num_rows), 0.0, None)
    assert torch.equal(logits, kernels.linear(hidden, used))
    assert torch.equal(peaks[:, 1], logits[:, 256:512].amax(-1))
    sums = (logits[:, 768:] - peaks[:, 3:]).exp().sum(-1)
    torch.testing.assert_close(totals[:, 3], sums, rtol=1e-5, atol=0)
