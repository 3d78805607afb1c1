"""One forward and backward pass over a batch, micro-batch by micro-batch.

The one thing to know: the loss of a micro-batch is its part of one weighted sum, so gradients
simply add up. A loss that is not finite ends the pass before its gradient is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.policy.model.transformer import Transformer
from practicum.policy.train.batch import Batch, MicroBatch
from practicum.policy.train.logprobs import token_logprobs
from practicum.policy.train.masters import Masters
from practicum.policy.train.recompute import hidden_states

Objective = Callable[[Tensor, Tensor], Tensor]
"""(log-probs float64 [M], columns of the batch they belong to int64 [M]) -> scalar loss."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass saw. Its gradients are in the masters."""

    loss: float
    """Not finite if the pass ended early."""
    logprobs: Tensor
    """float64 [N], of the batch's targets before any update of this pass"""
    entropy: float
    """Mean over targets"""
    forward_s: float
    backward_s: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss)


def run_pass(
    model: Transformer,
    masters: Masters,
    batch: Batch,
    work: Sequence[MicroBatch],
    temperature: float,
    objective: Objective,
) -> Pass:
    """Go through the batch once; afterwards the masters hold the gradient of the objective."""
    loss_sum, entropy_sum = 0.0, 0.0
    logprobs_N = torch.zeros(len(batch), dtype=torch.float64)
    forward_s, backward_s = 0.0, 0.0
    masters.forget_gradients()
    with masters.collecting():
        for micro_batch in work:
            began = time.perf_counter()
            columns = micro_batch.columns
            hidden_TD = hidden_states(model, micro_batch.forest)
            hidden_RD = hidden_TD.index_select(0, micro_batch.nodes)
            logprobs, entropy_R = token_logprobs(
                hidden_RD,
                model.head,
                micro_batch.rows,
                batch.targets[columns],
                temperature,
                model.shape.logit_softcap,
            )
            loss = objective(logprobs.double(), columns)
            logprobs_N[columns] = logprobs.detach().double()
            entropy_sum += float(entropy_R[micro_batch.rows].double().sum())
            loss_sum += float(loss.detach())
            forward_s += time.perf_counter() - began
            if not math.isfinite(loss_sum):
                break
            began = time.perf_counter()
            loss.backward()
            backward_s += time.perf_counter() - began
    entropy = entropy_sum / max(1, len(batch))
    return Pass(loss_sum, logprobs_N, entropy, forward_s, backward_s)
