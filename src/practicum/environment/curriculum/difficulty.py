"""How much each task can teach, learnt from pass rates.

The gradient of a group of right and wrong attempts grows with p(1-p): tasks that always or never
pass teach nothing. Each task's pass rate p has a Beta posterior, whose counts fade as the policy
changes; its weight is the exact expectation of p(1-p). A task not tried yet borrows the mean of its
level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from practicum.errors import UsageError
from practicum.types import Task
from practicum.verdicts import TaskResult

DECAY = 0.98
"""Per report: what was observed 50 policies ago counts for about a third."""
PRIOR_STRENGTH = 2.0
"""Attempts that the mean of the level is worth."""
UNIFORM_SHARE = 0.1
"""Chance of a draw that ignores the weights, so that no estimate goes stale for ever."""


class PassRates:
    """Posteriors of all tasks of a pool."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = tasks
        self._counts: dict[str, tuple[float, float]] = {}
        """Task id -> faded (passed, failed); only of tasks that were tried."""
        self._level_means: dict[tuple[str, float], float] = {}

    def observe(self, results: Iterable[TaskResult]) -> None:
        """Take in one report: everything known fades, then the new results are added.

        Raises UsageError for a task that is not in the pool.
        """
        self._counts = {
            task_id: (passed * DECAY, failed * DECAY)
            for task_id, (passed, failed) in self._counts.items()
        }
        for result in results:
            if result.task_id not in self._tasks:
                raise UsageError(
                    f"the report speaks of task {result.task_id} ({result.domain}), which is not "
                    "in this curriculum's pool; give the curriculum and EnvQC the same pool"
                )
            passed, failed = self._counts.get(result.task_id, (0.0, 0.0))
            self._counts[result.task_id] = (
                passed + result.score_sum,
                failed + result.num_counted - result.score_sum,
            )
        self._update_level_means()

    def posterior(self, task: Task) -> tuple[float, float]:
        """Parameters of the Beta distribution of the task's pass rate."""
        mean = self._level_means.get((task.domain, task.difficulty), 0.5)
        passed, failed = self._counts.get(task.id, (0.0, 0.0))
        return PRIOR_STRENGTH * mean + passed, PRIOR_STRENGTH * (1.0 - mean) + failed

    def weights(self, tasks: Iterable[Task]) -> list[float]:
        """Chances of being drawn, in proportion to what each can teach, and partly equal."""
        informative = [expected_variance(*self.posterior(task)) for task in tasks]
        total = sum(informative)
        return [
            (1.0 - UNIFORM_SHARE) * weight / total + UNIFORM_SHARE / len(informative)
            for weight in informative
        ]

    def state(self) -> dict[str, Any]:
        return {"counts": {task_id: list(pair) for task_id, pair in self._counts.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._counts = {
            task_id: (float(passed), float(failed))
            for task_id, (passed, failed) in state["counts"].items()
        }
        self._update_level_means()

    def _update_level_means(self) -> None:
        by_level: dict[tuple[str, float], list[tuple[float, float]]] = {}
        for task_id, pair in self._counts.items():
            task = self._tasks[task_id]
            by_level.setdefault((task.domain, task.difficulty), []).append(pair)
        # fsum does not depend on the order of its terms, so a restored state gives the same bits.
        # One imagined pass and one failure keep the mean off 0 and 1.
        self._level_means = {
            level: (1.0 + math.fsum(passed for passed, _ in pairs))
            / (2.0 + math.fsum(passed + failed for passed, failed in pairs))
            for level, pairs in by_level.items()
        }


def expected_variance(passed: float, failed: float) -> float:
    """E[p(1-p)] under Beta(passed, failed).

    Example:
        >>> expected_variance(1.0, 1.0)
        0.16666666666666666
    """
    total = passed + failed
    return passed * failed / (total * (total + 1.0))
