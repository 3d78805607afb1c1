"""Log-probabilities of targets under the output head, and their gradient, in bounded memory.

The one thing to know: only rows that predict a target reach the vocabulary, a chunk of them at a
time, and the gradient of the head is added straight into `head.grad` where that buffer exists. The
last chunk keeps its probabilities for the backward pass, so rows that fit in one chunk (the usual
case on CPU) see the head once forward; earlier chunks compute their logits again.

`plain_token_logprobs` is the definition; `token_logprobs` the fast version that a test holds to it.

Shapes: R rows of hidden size D, V vocabulary, M targets, each read from one row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = 1 << 25
"""Most logits held at once: 128 MiB in float32, 682 rows at a vocabulary of 49,152."""


class TokenLogprobs(NamedTuple):
    logprobs_M: Tensor
    """Of every target; differentiable"""
    entropy_R: Tensor
    """Of the full distribution of every row, for reports; no gradient"""


def plain_token_logprobs(
    hidden_RD: Tensor, head_VD: Tensor, rows_M: Tensor, targets_M: Tensor, temperature: float
) -> TokenLogprobs:
    """The definition: log-softmax of the logits over the temperature, read at the targets."""
    log_p_RV = F.log_softmax(F.linear(hidden_RD, head_VD) / temperature, dim=-1)
    with torch.no_grad():
        entropy_R = -(log_p_RV.exp() * log_p_RV).sum(-1)
    return TokenLogprobs(log_p_RV[rows_M, targets_M], entropy_R)


def token_logprobs(
    hidden_RD: Tensor,
    head_VD: Tensor,
    rows_M: Tensor,
    targets_M: Tensor,
    temperature: float,
    chunk_logits: int = CHUNK_LOGITS,
) -> TokenLogprobs:
    """The same in chunks of rows, with the gradient written by hand."""
    chunk_rows = max(1, chunk_logits // len(head_VD))
    logprobs_M, entropy_R = _TokenLogprobs.apply(
        hidden_RD, head_VD, rows_M, targets_M, temperature, chunk_rows
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
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs_M = hidden_RD.new_empty(len(rows_M))
        log_z_R, entropy_R = hidden_RD.new_empty((2, len(hidden_RD)))
        probabilities: Tensor | None = None
        for first in range(0, len(hidden_RD), chunk_rows):
            chunk = slice(first, first + chunk_rows)
            here = _within(rows_M, chunk)
            log_p = _logits(hidden_RD[chunk], head_VD, temperature)
            log_z_R[chunk] = log_p.logsumexp(-1)
            log_p.sub_(log_z_R[chunk, None])
            logprobs_M[here] = log_p[rows_M[here] - first, targets_M[here]]
            probabilities = log_p.exp()
            entropy_R[chunk] = -torch.linalg.vecdot(probabilities, log_p)
        ctx.save_for_backward(hidden_RD, head_VD, rows_M, targets_M, log_z_R)
        ctx.last_probabilities = probabilities
        ctx.temperature, ctx.chunk_rows = temperature, chunk_rows
        ctx.mark_non_differentiable(entropy_R)
        return logprobs_M, entropy_R

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - once_differentiable hides names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_RD, head_VD, rows_M, targets_M, log_z_R = ctx.saved_tensors
        grad_M = grad_outputs[0] / ctx.temperature
        grad_R = torch.zeros_like(log_z_R).index_add_(0, rows_M, grad_M)
        grad_hidden_RD = torch.empty_like(hidden_RD)
        buffer: Tensor | None = head_VD.grad if head_VD.is_leaf else None
        grad_head_VD = torch.zeros_like(head_VD) if buffer is None else buffer
        grad_logits: Tensor | None = ctx.last_probabilities
        ctx.last_probabilities = None  # about to be overwritten
        for first in reversed(range(0, len(hidden_RD), ctx.chunk_rows)):
            chunk = slice(first, first + ctx.chunk_rows)
            if grad_logits is None:
                grad_logits = _logits(hidden_RD[chunk], head_VD, ctx.temperature)
                grad_logits.sub_(log_z_R[chunk, None]).exp_()
            grad_logits.mul_(-grad_R[chunk, None])
            # On the flat view, because two targets may be the same token of the same row, and
            # because index_add_ sums in a fixed order, which accumulating scatters do not promise.
            here = _within(rows_M, chunk)
            flat_index = (rows_M[here] - first) * len(head_VD) + targets_M[here]
            grad_logits.view(-1).index_add_(0, flat_index, grad_M[here])
            torch.mm(grad_logits, head_VD, out=grad_hidden_RD[chunk])
            grad_head_VD.addmm_(grad_logits.t(), hidden_RD[chunk])
            grad_logits = None
        grad_of_head = grad_head_VD if buffer is None else None  # else it is where it belongs
        return grad_hidden_RD, grad_of_head, None, None, None, None


def _logits(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    logits = F.linear(hidden, head)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _within(rows: Tensor, chunk: slice) -> Tensor:
    """Which targets are read from the rows of a chunk, as indices."""
    return ((rows >= chunk.start) & (rows < chunk.stop)).nonzero().squeeze(1)
