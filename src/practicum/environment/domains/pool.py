"""A fixed set of tasks to practise or to be examined on, drawn once, the same on every machine.

The one thing to know: a domain's part of the pool depends on (seed, split, levels, size) and on
the domain alone. Adding another domain to a run leaves the tasks of the first as they were.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from practicum.environment.domains.domain import Domain, NoSuchTask
from practicum.errors import UsageError
from practicum.types import Split, Task

PATIENCE = 20
"""A level is exhausted once this many times as many draws as it gave tasks brought nothing new: by
then, the chance to have missed a given one of equally likely tasks is about e^-20."""
LEAST_PATIENCE = 200


class TaskPool(Mapping[str, Task]):
    """Task id -> task, in the order of drawing.

    Example:
        >>> pool = draw_pool([get_domain("addition")], seed=0, split="train", size=512)
        >>> pool.sizes  # all that level 0 has, the rest from the higher levels
        {'addition': 512}
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = {task.id: task for task in tasks}
        by_domain: dict[str, list[Task]] = {}
        for task in self._tasks.values():
            by_domain.setdefault(task.domain, []).append(task)
        self.by_domain: Mapping[str, tuple[Task, ...]] = {
            domain: tuple(of_domain) for domain, of_domain in by_domain.items()
        }

    def __getitem__(self, task_id: str) -> Task:
        return self._tasks[task_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of tasks of each domain; less than asked for where the domain has no more."""
        return {domain: len(tasks) for domain, tasks in self.by_domain.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Equal for pools of the same tasks in the same order."""
        return hashlib.sha256("\n".join(self._tasks).encode()).hexdigest()[:16]


def draw_pool(
    domains: Iterable[Domain],
    *,
    seed: int,
    split: Split,
    size: int,
    levels: tuple[float, float] = (0.0, 1.0),
) -> TaskPool:
    """Draw up to `size` different tasks of each domain, evenly over its levels in this range.

    Raises UsageError if a domain has no task in the range.
    """
    tasks: list[Task] = []
    for domain in domains:
        of_domain = _draw_domain(domain, seed, split, size, levels)
        if not of_domain:
            listed = ", ".join(str(level) for level in domain.levels)
            raise UsageError(
                f"domain {domain.name!r} has no {split} task between the levels {levels[0]} and "
                f"{levels[1]}; its levels are {listed}. Widen `domains.levels` or leave it out."
            )
        tasks += of_domain
    return TaskPool(tasks)


@dataclass(slots=True)
class _Level:
    """One level while it is being drawn from."""

    difficulty: float
    rng: random.Random
    num_found: int = 0


def _draw_domain(
    domain: Domain, seed: int, split: Split, size: int, levels: tuple[float, float]
) -> list[Task]:
    found: dict[str, Task] = {}
    """By what is asked: another wording of a question is not another, independent task."""
    active = [
        _Level(level, _generator(seed, split, domain.name, level))
        for level in domain.levels
        if levels[0] <= level <= levels[1]
    ]
    # One task of each level in turn; the share of an exhausted level goes to the others.
    while active and len(found) < size:
        level = active.pop(0)
        task = _draw_new(domain, level, split, found)
        if task is not None:
            found[_content(task)] = task
            active.append(level)
    return list(found.values())


def _draw_new(
    domain: Domain, level: _Level, split: Split, found: Mapping[str, Task]
) -> Task | None:
    for _ in range(max(LEAST_PATIENCE, PATIENCE * level.num_found)):
        try:
            task = domain.draw(level.rng, level.difficulty, split)
        except NoSuchTask:
            return None
        if _content(task) not in found:
            level.num_found += 1
            return task
    return None


def _content(task: Task) -> str:
    return task.metadata.get("content", task.id)


def _generator(seed: int, split: Split, domain: str, level: float) -> random.Random:
    # A string seed goes through SHA-512, so it does not depend on PYTHONHASHSEED.
    return random.Random(f"{seed}/{split}/{domain}/{level}")
