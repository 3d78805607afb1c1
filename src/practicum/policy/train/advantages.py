"""From the rewards of one group to the advantages of its attempts. Pure functions of floats.

The one thing to know: a group whose rewards agree has advantages of exactly 0, whatever rounding
does to their mean. The guard is on the spread of the rewards; no standard deviation is padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SPREAD_FLOOR = 1e-6
"""Rewards closer than this agree: no verifier means such a difference, and dividing by it would."""


def has_spread(rewards: Sequence[float]) -> bool:
    """Whether the group says anything about which attempt was better."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > SPREAD_FLOOR


def centred(rewards: Sequence[float]) -> list[float]:
    """R_i - mean(R), the advantage of Dr. GRPO (arXiv 2503.20783).

    Example:
        >>> centred([1.0, 0.0, 0.0, 0.0])
        [0.75, -0.25, -0.25, -0.25]
    """
    if not has_spread(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def standardised(rewards: Sequence[float]) -> list[float]:
    """(R_i - mean(R)) / std(R), the advantage of GRPO (arXiv 2402.03300).

    The paper leaves the estimator open: this is the sample deviation (ddof 1), as in most
    implementations, not the population's.

    Example:
        >>> standardised([1.0, 0.0, 0.0, 0.0])
        [1.5, -0.5, -0.5, -0.5]
    """
    deviations = centred(rewards)
    if not has_spread(rewards):
        return deviations
    variance = math.fsum(d * d for d in deviations) / (len(rewards) - 1)
    return [deviation / math.sqrt(variance) for deviation in deviations]
