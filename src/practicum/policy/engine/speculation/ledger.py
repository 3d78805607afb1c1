"""Whether a proposer is worth its time: what its guesses save against what it costs to ask.

Sleep is slow and waking is quick: a proposer rests once it has lost on average, is still heard now
and then, and is back with the first proposal that gains.
"""

from __future__ import annotations

import math

LISTEN_SHARE = 0.005
"""Share of the time of all steps that a resting proposer may take."""
MEMORY = 16
"""Proposals that the averages remember."""
SHRINK = 0.1
"""By how much the reach falls with each proposal of which less was used."""


class Ledger:
    """Savings and costs of one proposer."""

    def __init__(self, most_guesses: float) -> None:
        self._most = most_guesses
        self._reach = most_guesses
        self._gain_s = 0.0
        self._cost_s = 0.0
        self._allowance_s = 0.0

    @property
    def resting(self) -> bool:
        return self._gain_s < 0.0

    @property
    def may_propose(self) -> bool:
        return not self.resting or self._allowance_s >= self._cost_s

    @property
    def reach(self) -> int:
        """Guesses worth asking for: one more than the deepest that were of use lately."""
        return math.ceil(self._reach)

    def allow(self, step_s: float) -> None:
        """A step has passed: a resting proposer saves up a share of its time."""
        self._allowance_s = min(self._allowance_s + LISTEN_SHARE * step_s, self._cost_s)

    def book(self, saved_s: float, cost_s: float, deepest: int) -> None:
        """A proposal cost and saved so much, and guesses up to so deep were run."""
        if self.resting:
            self._allowance_s -= cost_s  # into debt, where it took longer than expected
        gain_s = saved_s - cost_s
        if gain_s > 0.0:
            self._gain_s = max(self._gain_s, 0.0)
        self._gain_s += (gain_s - self._gain_s) / MEMORY
        self._cost_s += (cost_s - self._cost_s) / (MEMORY if self._cost_s else 1)
        self._reach = min(self._most, max(deepest + 1.0, self._reach - SHRINK))
