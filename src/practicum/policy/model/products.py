"""Products of half-precision tensors by the library, in whatever form is fast on this processor."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

FEW_ROWS = 1024
"""Widened at once"""


def widen(x: Tensor) -> Tensor:
    """At least float32: half precision is widened, float64 stays (gradient checks run in it)."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


@functools.cache
def multiplies_half() -> bool:
    """Whether the library multiplies bfloat16 faster than float32 here; elsewhere up to 8 times
    slower (processors without AVX-512)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, at least float32; of half precision in float32 where that is the faster way."""
    if a.dtype == torch.bfloat16 and multiplies_half():
        return (a @ b).float()
    return widen(a) @ widen(b)


def product_by_rows(x_TD: Tensor, weight_ED: Tensor) -> Tensor:
    """`x W^T` of half precision in float32, float32 [T, E]; no gradient.

    Some rows at a time, so that what is widened is still in a cache when it is multiplied.
    """
    x_TD = widen(x_TD)
    out_TE = x_TD.new_empty((*x_TD.shape[:-1], len(weight_ED)))
    for rows, out in zip(weight_ED.split(FEW_ROWS), out_TE.split(FEW_ROWS, dim=-1), strict=True):
        out.copy_(x_TD @ widen(rows).t())
    return out_TE
