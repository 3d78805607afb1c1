"""A domain and a curriculum for tests of the loop: no model, no sandbox, real verdicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from practicum.environment.domains.domain import Domain, Limits
from practicum.protocols import SandboxPool
from practicum.types import Message, Split, Task, Trajectory
from practicum.verdicts import Report, Verdict, VerifierId

ID = VerifierId("same_text", "1", "test")


@dataclass(frozen=True, slots=True)
class SameText:
    """Score 1 if the answer is what the task expects. `judge` may raise first."""

    judge: Callable[[Task, Trajectory], None] = lambda task, rollout: None
    id: VerifierId = ID

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        self.judge(task, rollout)
        return Verdict(score=float(rollout.response == task.answer), verifier=self.id)


def letter_task(letter: str) -> Task:
    return Task.create(
        domain="letters",
        prompt=(Message("text", f"say {letter}"),),
        answer=letter,
        difficulty=0.0,
        split="train",
    )


def letters_domain(verifier: SameText | None = None) -> Domain:
    def draw(rng: random.Random, level: float, split: Split) -> Task:
        return letter_task(rng.choice("abcdefgh"))

    return Domain(
        name="letters",
        summary="say a letter",
        skill="echo",
        levels=(0.0,),
        draw=draw,
        oracle=lambda task: task.answer,
        verifier=verifier or SameText(),
        limits=Limits(max_new_tokens=4, stop=()),
    )


class InOrder:
    """A curriculum that goes through its tasks by slot, and remembers what it was told."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.tasks = list(tasks.values())
        self.reports: list[Report] = []

    def sample(self, slot: int) -> Task:
        return self.tasks[slot % len(self.tasks)]

    def observe(self, report: Report) -> None:
        self.reports.append(report)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass
