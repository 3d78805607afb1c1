"""The objective of policy optimisation over a batch: a pass with advantages, ratio and clip.

The one thing to know: without given proximal log-probs the pass takes its own, detached, so its
ratio is exactly 1. That is the first pass of a step; it yields the proximal log-probs of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from practicum.policy.model.transformer import Transformer
from practicum.policy.train.algorithms import Algorithm
from practicum.policy.train.batch import Batch, MicroBatch
from practicum.policy.train.losses import Clip
from practicum.policy.train.masters import Masters
from practicum.policy.train.passes import Pass, run_pass


@dataclass(frozen=True, slots=True)
class PolicyPass:
    """A pass, and what the ratio did in it."""

    base: Pass
    ratio_max: float
    clip_share: float
    """Share of the targets whose gradient the clip removed"""


def run_policy_pass(
    model: Transformer,
    masters: Masters,
    batch: Batch,
    work: Sequence[MicroBatch],
    *,
    temperature: float,
    algorithm: Algorithm,
    clip: Clip,
    proximal: Tensor | None,
) -> PolicyPass:
    """Collect the gradient of the algorithm's loss. `proximal`, float64 [N], is None at first."""
    ratio_max = 0.0
    num_clipped = 0

    def objective(logprobs_M: Tensor, columns_M: Tensor) -> Tensor:
        nonlocal ratio_max, num_clipped
        old_M = logprobs_M.detach() if proximal is None else proximal[columns_M]
        token = algorithm.token_loss(logprobs_M, old_M, batch.advantages[columns_M], clip)
        ratio_max = max(ratio_max, float(token.ratio.max()))
        num_clipped += int(token.clipped.sum())
        return (token.loss * batch.weights[columns_M]).sum()

    base = run_pass(model, masters, batch, work, temperature, objective)
    return PolicyPass(base, ratio_max, num_clipped / max(1, len(batch)))
