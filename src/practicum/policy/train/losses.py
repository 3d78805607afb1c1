"""What one token contributes, as a function of its log-probability.

The one thing to know: the ratio is taken against the *proximal* policy, the trainer's own
log-probabilities at the start of the step. They are read off the first pass, where the ratio is
therefore exactly 1 and the gradient that of plain policy gradient. What the engine recorded while
sampling is the *behaviour* policy: compared with (`mismatch`), never recomputed or in the ratio.

Shapes: M tokens, in float64 (a few numbers per token; the cost is nothing).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Clip:
    """Where the surrogate stops to reward a change of probability."""

    low: float
    """The ratio is clipped below at 1 - low."""
    high: float
    """The ratio is clipped above at 1 + high."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    loss: Tensor
    """[M], differentiable; minimised"""
    ratio: Tensor
    """[M], pi / pi_proximal"""
    clipped: Tensor
    """bool [M]: the clipped branch is the smaller, so the token has no gradient"""


def clipped_surrogate(
    logprobs_M: Tensor, proximal_M: Tensor, advantages_M: Tensor, clip: Clip
) -> TokenLoss:
    """-min(r A, clip(r, 1 - low, 1 + high) A), the surrogate of PPO (arXiv 1707.06347)."""
    ratio = (logprobs_M - proximal_M).exp()
    free = ratio * advantages_M
    bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * advantages_M
    return TokenLoss(
        loss=-torch.minimum(free, bounded), ratio=ratio.detach(), clipped=bounded < free
    )


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How far the trainer's probabilities of the sampled tokens are from the engine's."""

    mean_absolute: float
    mean_signed: float
    """Trainer minus engine: below 0 if the engine was too sure of what it sampled."""
    kl_k3: float
    """Estimate of KL(engine || trainer): mean of e^d - 1 - d with d = trainer - engine."""


def mismatch(proximal_M: Tensor, behaviour_M: Tensor) -> Mismatch:
    """Compare log-probabilities; all zero where engine and trainer agree bit for bit."""
    gap = proximal_M - behaviour_M
    return Mismatch(
        mean_absolute=float(gap.abs().mean()),
        mean_signed=float(gap.mean()),
        kl_k3=float((gap.expm1() - gap).mean()),
    )
