"""How token losses become one number: the weight of a token, all denominators folded in.

The one thing to know: a weight is computed once for the whole step, so the loss is a plain weighted
sum over tokens; neither micro-batches, nor their order, nor leaving out zero advantages changes it.

Example:
    two sequences of 10 and 100 tokens, every token loss -1 in the first and +1 in the second:
    token_mean gives 90/110 = 0.8182, sequence_mean 0, constant_length with L = 128 90/256 = 0.3516.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """What a denominator may be made of, counted over everything that was scored in the step.

    Attempts of groups without signal count too: their advantage is 0, but they are part of the
    mean. So a step in which few groups have signal takes a proportionally smaller gradient.
    """

    num_trajectories: int
    num_tokens: int
    """Trainable tokens."""
    max_response_tokens: int
    """A constant of the run, not a property of the data."""


TokenWeight = Callable[[int, Totals], float]
"""(trainable tokens of the trajectory, totals) -> weight of each of its tokens."""


def sequence_mean(num_tokens: int, totals: Totals) -> float:
    """Mean over trajectories of the mean over tokens: 1 / (N |y|).

    Tokens of long answers weigh less. N counts all trajectories of the step; where every group has
    the same number of them, that is the mean over groups of the mean within.
    """
    return 1.0 / (totals.num_trajectories * num_tokens)


def constant_length(num_tokens: int, totals: Totals) -> float:
    """1 / (N L_max): every token weighs the same, and that weight is the same in every step."""
    return 1.0 / (totals.num_trajectories * totals.max_response_tokens)


def token_mean(num_tokens: int, totals: Totals) -> float:
    """Mean over all tokens: every token weighs the same, whichever trajectory it is of."""
    return 1.0 / totals.num_tokens
