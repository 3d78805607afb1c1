"""The curriculum as a plain loop sees it: the tasks of the next step, please."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from practicum.environment.curriculum.curriculum import PassRateCurriculum
from practicum.errors import UsageError
from practicum.types import Task


@dataclass(slots=True)
class Scheduler:
    """Hands out `groups_per_step` slots at a time.

    Example:
        >>> scheduler = Scheduler(curriculum, groups_per_step=12)
        >>> tasks = scheduler.sample(task_pool, domains=["addition", "reversal"])
    """

    curriculum: PassRateCurriculum
    groups_per_step: int
    next_slot: int = 0

    def sample(self, task_pool: Mapping[str, Task], domains: Iterable[str]) -> list[Task]:
        """The tasks of the next step.

        Pool and domains are named here so that a loop reads well; both were settled with the
        curriculum. Raises UsageError if they differ.
        """
        if task_pool.keys() != self.curriculum.pool.keys():
            raise UsageError(
                f"this task pool ({len(task_pool)} tasks) is not the curriculum's "
                f"({len(self.curriculum.pool)} tasks); build the curriculum from the pool you use"
            )
        asked, known = set(domains), set(self.curriculum.mixture.domains)
        if asked != known:
            raise UsageError(
                f"domains {sorted(asked)} asked for, but the curriculum mixes {sorted(known)}; "
                "change the shares it was built with"
            )
        slots = range(self.next_slot, self.next_slot + self.groups_per_step)
        self.next_slot = slots.stop
        return [self.curriculum.sample(slot) for slot in slots]
