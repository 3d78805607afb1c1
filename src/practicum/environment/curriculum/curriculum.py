"""What to practise next: the mixture picks the domain, pass rates pick the task within it.

The one thing to know: the task of a slot is settled when the slot is first asked for (earlier slots
before later ones) and stays what it is. So nothing hangs on who asks, how often, or in which order,
and a resumed run gets the same tasks for the slots that were on their way.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

from practicum.environment.curriculum.difficulty import PassRates
from practicum.environment.curriculum.mixture import Mixture
from practicum.environment.domains.pool import TaskPool
from practicum.errors import UsageError
from practicum.types import Task
from practicum.verdicts import Report

KEPT_SLOTS = 4096
"""Settled slots that are remembered: far more than can be on their way at a time."""


class PassRateCurriculum:
    """Samples tasks of which the policy solves some attempts and fails others.

    Example:
        >>> curriculum = PassRateCurriculum(pool, {"addition": 1.0, "reversal": 1.0}, seed=0)
        >>> curriculum.sample(0).domain
        'addition'
    """

    def __init__(
        self, pool: TaskPool, shares: Mapping[str, float], *, seed: int, floor: float = 0.0
    ) -> None:
        missing = sorted(set(shares) - set(pool.by_domain))
        if missing:
            raise UsageError(
                f"the task pool has no task of {', '.join(missing)}; it holds {pool.sizes}"
            )
        self.pool = pool
        self.mixture = Mixture(shares, floor)
        self.pass_rates = PassRates(pool)
        self._seed = seed
        self._settled: dict[int, str] = {}
        """Slot -> task id, of the last KEPT_SLOTS slots."""
        self._num_settled = 0
        self._drawn: dict[str, set[str]] = {domain: set() for domain in self.mixture.domains}
        """Tasks that this epoch of a domain has used."""

    def sample(self, slot: int) -> Task:
        """The task for this slot. Deterministic in seed, slot and the reports seen before it."""
        assert slot >= self._num_settled - KEPT_SLOTS, f"slot {slot} is long past"
        while self._num_settled <= slot:
            self._settled[self._num_settled] = self._draw(self._num_settled).id
            self._settled.pop(self._num_settled - KEPT_SLOTS, None)
            self._num_settled += 1
        return self.pool[self._settled[slot]]

    def observe(self, report: Report) -> None:
        """Learn from the pass rates of one step."""
        self.pass_rates.observe(report.results)

    def state(self) -> dict[str, Any]:
        """JSON-able; `restore(state())` on a curriculum of the same pool continues exactly."""
        return {
            "pool": self.pool.fingerprint,
            "seed": self._seed,
            "num_settled": self._num_settled,
            "settled": list(self._settled.values()),
            "drawn": {domain: sorted(drawn) for domain, drawn in self._drawn.items()},
            "pass_rates": self.pass_rates.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises UsageError if the state belongs to other tasks, domains or another seed."""
        theirs = (state["pool"], state["seed"], sorted(state["drawn"]))
        ours = (self.pool.fingerprint, self._seed, sorted(self._drawn))
        if theirs != ours:
            raise UsageError(
                f"the saved curriculum has (pool, seed, domains) = {theirs}, this run has {ours}; "
                "resume with the recipe that the run was started with"
            )
        settled: list[str] = state["settled"]
        self._num_settled = state["num_settled"]
        self._settled = dict(enumerate(settled, self._num_settled - len(settled)))
        self._drawn = {domain: set(drawn) for domain, drawn in state["drawn"].items()}
        self.pass_rates.restore(state["pass_rates"])

    def _draw(self, slot: int) -> Task:
        domain = self.mixture.domain_of(slot)
        tasks = self.pool.by_domain[domain]
        drawn = self._drawn[domain]
        # An epoch is half the pool, without replacement: a whole one would practise every task
        # equally often, whatever its weight.
        if 2 * len(drawn) >= len(tasks):
            drawn.clear()
        fresh = [task for task in tasks if task.id not in drawn]
        rng = _generator(self._seed, slot)
        task = rng.choices(fresh, weights=self.pass_rates.weights(fresh))[0]
        drawn.add(task.id)
        return task


def _generator(seed: int, slot: int) -> random.Random:
    """Every slot has its own stream, so no draw depends on how many draws came before."""
    digest = hashlib.sha256(f"curriculum/{seed}/{slot}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
