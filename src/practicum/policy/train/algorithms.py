"""The algorithms by name: an advantage, a token weight and a token loss each.

A new one is one line here, plus whichever of its three functions does not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from practicum.policy.train.advantages import centred, standardised
from practicum.policy.train.aggregation import TokenWeight, constant_length, sequence_mean
from practicum.policy.train.losses import Clip, TokenLoss, clipped_surrogate


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What turns rewards into a loss. See the three modules of the same names."""

    advantages: Callable[[Sequence[float]], list[float]]
    """Rewards of a group -> advantages of its attempts; exactly 0 where the group has no spread."""
    token_weight: TokenWeight
    token_loss: Callable[[Tensor, Tensor, Tensor, Clip], TokenLoss]
    """(log-probs, proximal log-probs, advantages, clip) -> loss of every token."""


ALGORITHMS: Mapping[str, Algorithm] = {
    "grpo": Algorithm(standardised, sequence_mean, clipped_surrogate),
    "dr_grpo": Algorithm(centred, constant_length, clipped_surrogate),
}
