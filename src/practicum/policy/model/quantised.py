"""Quantised weights: made from parameters, and multiplied with.

The one thing to know: what is quantised is no longer exact. A log-probability that such a model
records differs from the trainer's by rounding of weights and, for int8, of activations.

Each function has a plain PyTorch form that gives the same numbers: int8 products are sums of whole
numbers, and int4 weights are looked up as bfloat16 before an ordinary product.

Shapes: T tokens, D features in, E features out, G groups of 64 weights in a row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.policy.model.native import kernels
from practicum.policy.model.native.matrix import SHARERS, STEP, Quantised, Storage, empty
from practicum.policy.model.products import product

LARGEST = 127
"""Of an int8 value; -128 is not used, so that both signs have the same levels."""
FEWEST_ROWS = 32
"""PyTorch's product of int8 matrices wants more than 16 rows, in whole eights, on some devices."""


def quantise(weight_ED: Tensor, kind: Storage) -> Quantised:
    """A quantised copy of a matrix."""
    copy = empty(kind, *weight_ED.shape)
    requantise_(copy, weight_ED)
    return copy


@torch.no_grad()
def requantise_(copy: Quantised, weight_ED: Tensor) -> None:
    """Overwrite a copy, after its matrix has changed."""
    assert copy.shape == weight_ED.shape
    if kernels.serves(weight_ED.dtype, weight_ED.shape[1]):
        kernels.quantise_(copy, weight_ED)
        return
    values, scales = _plain_quantise(weight_ED.to(torch.bfloat16), copy.kind)
    copy.values.copy_(values)
    copy.scales.copy_(scales)


def linear(x_TD: Tensor, weight: Quantised, bias_E: Tensor | None = None) -> Tensor:
    """`x W^T + b`, float32 [.., E]. `x` is bfloat16; no gradient."""
    if kernels.serves(x_TD.dtype, x_TD.shape[-1]):
        return kernels.linear(x_TD, weight, bias_E)
    return plain_linear(x_TD, weight, bias_E)


def plain_linear(x_TD: Tensor, weight: Quantised, bias_E: Tensor | None = None) -> Tensor:
    if weight.kind == "int4":
        out = product(x_TD, decoded(weight).t())
    else:
        values, scales_T = rounded(x_TD.flatten(0, -2))
        whole = _whole_product(values, weight.values)
        out = whole.float() * weight.scales * scales_T[:, None]
        out = out.unflatten(0, x_TD.shape[:-1])
    return out if bias_E is None else out + bias_E.float()


def decoded(weight: Quantised) -> Tensor:
    """The matrix that a copy stands for: bfloat16 from int4, float32 from int8."""
    if weight.kind == "int8":
        return spread(weight.values.float() * weight.scales[:, None])[:, : weight.shape[1]]
    codes = weight.values.unflatten(-1, (-1, SHARERS // 2))
    levels_EGX = torch.cat((codes & 15, codes >> 4), dim=-1).float()
    lowest, distance = weight.scales.float().unbind(-1)
    return (levels_EGX * distance[..., None] + lowest[..., None]).flatten(1).to(torch.bfloat16)


def spread(x_TD: Tensor) -> Tensor:
    """Every 64 values turned by a Hadamard matrix, which is orthogonal and its own inverse.

    It shares a few large values among all 64, so that one scale suits them. (QuaRot, 2404.00456)
    """
    out = x_TD.float().unflatten(-1, (-1, *[2] * 6))
    for axis in range(-1, -7, -1):
        first, second = out.unbind(axis)
        out = torch.stack((first + second, first - second), dim=axis)
    return out.flatten(-7) / 8


def rounded(x_TD: Tensor) -> tuple[Tensor, Tensor]:
    """Spread and rounded: int8 [T, D padded] and float32 scales [T], of which NaN or infinity
    makes one too."""
    x_TD = spread(F.pad(x_TD.float(), (0, -x_TD.shape[-1] % STEP)))
    most_T = x_TD.abs().amax(-1)
    most_T = torch.where(most_T == 0.0, float(LARGEST), most_T)
    factor_T = torch.full_like(most_T, LARGEST) / most_T  # a number over a tensor is less exact
    values = (x_TD * factor_T[:, None]).round().nan_to_num(0.0)
    return values.clamp(-LARGEST, LARGEST).to(torch.int8), most_T / LARGEST


def _plain_quantise(weight_ED: Tensor, kind: Storage) -> tuple[Tensor, Tensor]:
    if kind == "int8":
        return rounded(weight_ED)
    grouped = weight_ED.float().unflatten(-1, (-1, SHARERS))
    lowest, highest = grouped.aminmax(dim=-1)
    grid = torch.stack((lowest, (highest - lowest) / 15), dim=-1).to(torch.bfloat16)
    lowest, distance = grid.float().unbind(-1)
    factor = torch.where(distance == 0.0, 0.0, 1.0 / distance)
    places = (grouped - lowest[..., None]) * factor[..., None]
    levels = places.clamp(0, 15).round().to(torch.uint8)
    first, second = levels.chunk(2, dim=-1)
    return (first | second << 4).flatten(1), grid


def _whole_product(x_TD: Tensor, weight_ED: Tensor) -> Tensor:
    """int32 [T, E], exact."""
    num_rows = len(x_TD)
    excess = max(FEWEST_ROWS, num_rows + -num_rows % 8) - num_rows
    padded = F.pad(x_TD, (0, 0, 0, excess))
    return torch._int_mm(padded, weight_ED.t().contiguous())[:num_rows]  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
