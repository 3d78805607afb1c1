"""From hidden states to distributions over the vocabulary: one function for engine and trainer.

The one thing to know: a log-probability is computed here and nowhere else, `logit - log_total` in
float64, so that what the engine records is what the trainer finds. The logits are kept, because a
sampler with penalties or truncation and the trainer's gradient need them.

Shapes: N rows of hidden size D, V vocabulary, B blocks of 256 tokens, M draws or targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.policy.model import ops
from practicum.policy.model.native import kernels
from practicum.policy.model.native.kernels import VOCABULARY_BLOCK, Weight

LOWEST = -87.0
"""Exponents end here, where float32 does: torch is slow on what underflows."""
FEW_ROWS = 4
"""Summed up at once"""


@dataclass(frozen=True, slots=True)
class Distribution:
    """N distributions at their temperatures."""

    logits: Tensor
    """[N, V], at least float32, divided by the temperature"""
    peaks: Tensor
    """[N, B]: highest logit of each block"""
    totals: Tensor
    """[N, B]: sum of exp(logit - peak) over each block"""
    log_total: Tensor
    """float64 [N]: log of the sum of exp(logit)"""

    def logprobs(self, rows_M: Tensor, tokens_M: Tensor) -> Tensor:
        """float64 [M]: natural log of the probability of each token in its row."""
        return self.logits[rows_M, tokens_M].double() - self.log_total[rows_M]

    def draw(self, rows_M: Tensor, uniforms_M: Tensor) -> Tensor:
        """int64 [M]: the token at which the cumulative probability of its row exceeds a uniform."""
        if self.logits.dtype == torch.float32 and kernels.serves(torch.bfloat16):
            return kernels.draw(self.logits, self.peaks, self.totals, rows_M, uniforms_M)
        return _plain_draw(self, rows_M, uniforms_M)

    def likeliest(self, rows_M: Tensor) -> Tensor:
        """int64 [M]: the token of the highest logit, the first of equals."""
        block = self.peaks[rows_M].argmax(-1)
        padded = _in_blocks(self.logits, -torch.inf)[rows_M, block]
        return block * VOCABULARY_BLOCK + padded.argmax(-1)


def distribution(
    hidden_ND: Tensor,
    head_VD: Weight,
    temperatures_N: Tensor,
    softcap: float | None = None,
    room: Tensor | None = None,
) -> Distribution:
    """The distribution after each hidden state; no gradient. Temperatures are above 0.

    `room`: float32 memory of at least N * V, in which kernels put the logits instead of in memory
    of their own; they stand there until it is used again. (Fresh memory of that size costs a page
    fault for every thousand logits.)
    """
    factors = 1.0 / temperatures_N
    if kernels.serves(head_VD.dtype, hidden_ND.shape[-1]):
        logits, peaks, totals = kernels.head(
            hidden_ND, head_VD, factors.float(), softcap or 0.0, room
        )
        log_total = kernels.log_totals(peaks, totals, len(head_VD))
        return Distribution(logits, peaks, totals, log_total)
    logits = ops.linear(hidden_ND, head_VD)
    if softcap is not None:
        logits = ops.softcap(logits, softcap)
    if not bool((factors == 1.0).all()):
        logits = logits * factors.to(logits.dtype)[:, None]
    return summarised(logits)


def summarised(logits_NV: Tensor) -> Distribution:
    """The distribution that given logits define."""
    blocks_NBX = _in_blocks(logits_NV, -torch.inf)
    peaks_NB = blocks_NBX.amax(-1)
    base_NB = torch.where(peaks_NB == -torch.inf, 0.0, peaks_NB)
    # A few rows at a time: what is between stays in the processor's cache.
    few = zip(blocks_NBX.split(FEW_ROWS), base_NB[..., None].split(FEW_ROWS))
    totals_NB = torch.cat([(x - base).clamp_min_(LOWEST).exp_().sum(-1) for x, base in few])
    peak_N = peaks_NB.amax(-1).double()
    shares_NB = totals_NB.double() * (peaks_NB.double() - peak_N[:, None]).exp()
    return Distribution(logits_NV, peaks_NB, totals_NB, peak_N + shares_NB.sum(-1).log())


def _in_blocks(logits_NV: Tensor, padding: float) -> Tensor:
    """[N, B, 256]; a view where the vocabulary is a multiple of 256."""
    excess = -logits_NV.shape[-1] % VOCABULARY_BLOCK
    if excess:
        logits_NV = F.pad(logits_NV, (0, excess), value=padding)
    return logits_NV.unflatten(-1, (-1, VOCABULARY_BLOCK))


def _plain_draw(d: Distribution, rows_M: Tensor, uniforms_M: Tensor) -> Tensor:
    peak_M = d.peaks[rows_M].amax(-1).double()
    mass_MB = d.totals[rows_M].double() * (d.peaks[rows_M].double() - peak_M[:, None]).exp()
    up_to_MB = mass_MB.cumsum(-1)
    target_M = uniforms_M * up_to_MB[:, -1]
    block_M, before_M = _first_above(up_to_MB, target_M)
    inside_MX = _in_blocks(d.logits, -torch.inf)[rows_M, block_M].double()
    inside_MX = (inside_MX - peak_M[:, None]).exp().cumsum(-1)
    place_M, _ = _first_above(inside_MX, target_M - before_M)
    return block_M * VOCABULARY_BLOCK + place_M


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
