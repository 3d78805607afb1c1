"""From logits to tokens, one uniform number per token.

A request's uniforms depend on its seed and the token's position alone, so the same request draws
the same tokens whatever shares its batch. Inverse-CDF sampling in two levels: find the block of the
vocabulary, then the token in it; one pass over the logits, and exact up to float32.

Shapes: N rows, V vocabulary, B blocks of X tokens, M draws (several can be from one row).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256
"""Tokens per block: a few hundred blocks of a few hundred tokens make both levels short."""


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """`count` numbers in [0, 1). Number i is the same for every `count` > i."""
    generator = np.random.Generator(np.random.Philox(key=seed & (2**128 - 1)))
    return generator.random(count)


def sample(
    logits_NV: Tensor, rows_M: Tensor, temperatures_M: Tensor, uniforms_M: Tensor
) -> tuple[Tensor, Tensor]:
    """A token for every draw, and its natural log-probability. Overwrites the logits.

    Log-probabilities are at the draw's temperature; at temperature 0 the likeliest token is taken,
    and its log-probability is that of temperature 1. Each row's highest logit must be finite.
    """
    token_ids = torch.empty_like(rows_M)
    logprobs = torch.empty(len(rows_M), dtype=torch.float64)
    temperatures: list[float] = temperatures_M.unique().tolist()
    for temperature in temperatures:
        mine = (temperatures_M == temperature).nonzero().squeeze(1)
        logits, rows_M_here = logits_NV, rows_M[mine]
        if len(temperatures) > 1:
            used, rows_M_here = rows_M_here.unique(return_inverse=True)
            logits = logits_NV[used]
        if temperature == 0.0:
            ids, values = _likeliest(logits)
            token_ids[mine], logprobs[mine] = ids[rows_M_here], values[rows_M_here]
        else:
            drawn = _draw(logits, temperature, rows_M_here, uniforms_M[mine])
            token_ids[mine], logprobs[mine] = drawn
    return token_ids, logprobs


def _likeliest(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    highest, token_ids = logits_NV.max(-1, keepdim=True)
    total = logits_NV.sub_(highest).exp_().sum(-1)
    return token_ids.squeeze(1), -total.double().log()


def _draw(
    logits_NV: Tensor, temperature: float, rows_M: Tensor, uniforms_M: Tensor
) -> tuple[Tensor, Tensor]:
    weights_NV = logits_NV.sub_(logits_NV.amax(-1, keepdim=True))
    if temperature != 1.0:
        weights_NV.div_(temperature)  # after the subtraction, so that nothing overflows
    weights_NV.exp_()
    if excess := -weights_NV.shape[1] % BLOCK:
        weights_NV = F.pad(weights_NV, (0, excess))
    weights_NBX = weights_NV.unflatten(1, (-1, BLOCK))
    up_to_NB = weights_NBX.sum(-1).double().cumsum(-1)
    up_to_MB = up_to_NB[rows_M]
    total_M = up_to_MB[:, -1]
    blocks, before_M = _first_above(up_to_MB, uniforms_M * total_M)
    inside_MX = weights_NBX[rows_M, blocks].double().cumsum(-1)
    places, _ = _first_above(inside_MX, uniforms_M * total_M - before_M)
    weight_M = weights_NBX[rows_M, blocks, places].double()
    return blocks * BLOCK + places, (weight_M / total_M).log()


def _first_above(cumulative: Tensor, target_M: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the first entry above the target in each row [M, X], and the sum before it.

    The first entry above a target is never one of weight 0. Rounding can lift a target to the row's
    total, where no entry is above it; it is moved just below.
    """
    below_total = torch.nextafter(cumulative[:, -1], torch.zeros((), dtype=cumulative.dtype))
    target = torch.minimum(target_M, below_total)[:, None]
    index = (cumulative <= target).sum(-1)
    before = cumulative.gather(1, (index - 1).clamp_min(0)[:, None]).squeeze(1)
    return index, torch.where(index > 0, before, 0.0)


def all_finite(logits_NV: Tensor) -> bool:
    """Whether every row has a distribution; the maximum of a row is NaN if anything in it is."""
    return all(math.isfinite(value) for value in logits_NV.amax(-1).tolist())
