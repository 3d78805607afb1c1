"""Log-probabilities of targets under the output head, and their gradient, in bounded memory.

The one thing to know: only rows that predict a target reach the vocabulary, a chunk of them at a
time, and through the same function as in the engine (`policy.model.head`). The last chunk keeps its
probabilities for the backward pass, so rows that fit in one chunk (the usual case on CPU) see the
head once forward; earlier chunks compute their logits again.

`plain_token_logprobs` is the definition; `token_logprobs` the fast version that a test holds to it.

Shapes: R rows of hidden size D, V vocabulary, M targets, each read from one row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from practicum.policy.model.head import Distribution, distribution
from practicum.policy.model.ops import softcap as apply_softcap
from practicum.policy.model.products import product, widen

CHUNK_LOGITS = 1 << 25
"""Most logits held at once: 128 MiB in float32, 682 rows at a vocabulary of 49,152."""


class TokenLogprobs(NamedTuple):
    logprobs_M: Tensor
    """Of every target; differentiable"""
    entropy_R: Tensor
    """Of the full distribution of every row, for reports; no gradient"""


def plain_token_logprobs(
    hidden_RD: Tensor,
    head_VD: Tensor,
    rows_M: Tensor,
    targets_M: Tensor,
    temperature: float,
    softcap: float | None = None,
) -> TokenLogprobs:
    """The definition: log-softmax of the logits over the temperature, read at the targets."""
    logits_RV = F.linear(widen(hidden_RD), widen(head_VD))
    if softcap is not None:
        logits_RV = apply_softcap(logits_RV, softcap)
    log_p_RV = F.log_softmax(logits_RV / temperature, dim=-1)
    with torch.no_grad():
        entropy_R = -(log_p_RV.exp() * log_p_RV).sum(-1)
    return TokenLogprobs(log_p_RV[rows_M, targets_M], entropy_R)


def token_logprobs(
    hidden_RD: Tensor,
    head_VD: Tensor,
    rows_M: Tensor,
    targets_M: Tensor,
    temperature: float,
    softcap: float | None = None,
    chunk_logits: int = CHUNK_LOGITS,
) -> TokenLogprobs:
    """The same in chunks of rows, with the gradient written by hand."""
    chunk_rows = max(1, chunk_logits // len(head_VD))
    logprobs_M, entropy_R = _TokenLogprobs.apply(
        hidden_RD, head_VD, rows_M, targets_M, temperature, softcap, chunk_rows
    )
    return TokenLogprobs(logprobs_M, entropy_R)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RD: Tensor,
        head_VD: Tensor,
        rows_M: Tensor,
        targets_M: Tensor,
        temperature: float,
        softcap: float | None,
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor]:
        wide = widen(hidden_RD).dtype
        logprobs_M = hidden_RD.new_empty(len(rows_M), dtype=wide)
        entropy_R = hidden_RD.new_empty(len(hidden_RD), dtype=wide)
        log_z_R = hidden_RD.new_empty(len(hidden_RD), dtype=torch.float64)
        ctx.temperature, ctx.softcap, ctx.chunk_rows = temperature, softcap, chunk_rows
        ctx.last = None
        for first in range(0, len(hidden_RD), chunk_rows):
            chunk = slice(first, first + chunk_rows)
            here = _within(rows_M, chunk)
            there = _distribution(ctx, hidden_RD[chunk], head_VD)
            log_z_R[chunk] = there.log_total
            logprobs_M[here] = there.logprobs(rows_M[here] - first, targets_M[here]).to(wide)
            capped = there.logits.clone() if softcap is not None else None
            log_p = there.logits.sub_(there.log_total[:, None].to(wide))
            probabilities = log_p.exp()
            entropy_R[chunk] = -torch.linalg.vecdot(probabilities, log_p)
            ctx.last = probabilities, capped
        ctx.save_for_backward(hidden_RD, head_VD, rows_M, targets_M, log_z_R)
        ctx.mark_non_differentiable(entropy_R)
        return logprobs_M, entropy_R

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - once_differentiable hides names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_RD, head_VD, rows_M, targets_M, log_z_R = ctx.saved_tensors
        grad_M = grad_outputs[0] / ctx.temperature
        grad_R = torch.zeros(len(hidden_RD), dtype=grad_M.dtype).index_add_(0, rows_M, grad_M)
        grad_hidden_RD = torch.empty_like(hidden_RD)
        grad_head_VD: Tensor | None = None
        last, ctx.last = ctx.last, None  # about to be overwritten
        for first in reversed(range(0, len(hidden_RD), ctx.chunk_rows)):
            chunk = slice(first, first + ctx.chunk_rows)
            grad_logits, capped = last or _probabilities(ctx, hidden_RD, head_VD, log_z_R, chunk)
            last = None
            grad_logits.mul_(-grad_R[chunk, None])
            # On the flat view, because two targets may be the same token of the same row, and
            # because index_add_ sums in a fixed order, which accumulating scatters do not promise.
            here = _within(rows_M, chunk)
            flat_index = (rows_M[here] - first) * len(head_VD) + targets_M[here]
            grad_logits.view(-1).index_add_(0, flat_index, grad_M[here])
            if capped is not None:  # of tanh: 1 - tanh^2
                grad_logits.mul_(1 - (capped * (ctx.temperature / ctx.softcap)).square_())
            rounded = grad_logits.to(head_VD.dtype)
            grad_hidden_RD[chunk] = product(rounded, head_VD)
            part = product(rounded.t(), hidden_RD[chunk]).to(head_VD.dtype)
            grad_head_VD = part if grad_head_VD is None else grad_head_VD + part
        return grad_hidden_RD, grad_head_VD, None, None, None, None, None


def _distribution(ctx: Any, hidden: Tensor, head: Tensor) -> Distribution:
    temperatures = torch.full((len(hidden),), ctx.temperature, dtype=torch.float64)
    return distribution(hidden, head, temperatures, ctx.softcap)


def _probabilities(
    ctx: Any, hidden_RD: Tensor, head_VD: Tensor, log_z_R: Tensor, chunk: slice
) -> tuple[Tensor, Tensor | None]:
    logits = _distribution(ctx, hidden_RD[chunk], head_VD).logits
    capped = logits.clone() if ctx.softcap is not None else None
    return logits.sub_(log_z_R[chunk, None].to(logits.dtype)).exp_(), capped


def _within(rows: Tensor, chunk: slice) -> Tensor:
    """Which targets are read from the rows of a chunk, as indices."""
    return ((rows >= chunk.start) & (rows < chunk.stop)).nonzero().squeeze(1)
