"""Held-out evaluation: greedy, once per task, through the same attempt function as training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from practicum.environment.domains.domain import Domain
from practicum.environment.rollout.attempt import Attempted, attempt
from practicum.environment.rollout.play import AttemptKey
from practicum.environment.rollout.side_by_side import side_by_side
from practicum.observe.evals import EvalResult, EvalTask
from practicum.protocols import Policy, SandboxPool
from practicum.types import Task


async def evaluate(
    policy: Policy,
    tasks: Iterable[Task],
    domains: Mapping[str, Domain],
    sandboxes: SandboxPool,
    *,
    step: int,
    seed: int,
) -> EvalResult:
    """Attempt every task once at temperature 0. `step` says how much training came before."""
    tasks = list(tasks)
    attempted = await side_by_side(
        attempt(
            task,
            policy,
            sandboxes,
            domains,
            AttemptKey(group_id=f"eval-{step:06d}-{task.id}", sample=0, seed=seed),
            temperature=0.0,
        )
        for task in tasks
    )
    return EvalResult(
        step=step,
        policy=policy.name,
        version=policy.version,
        tasks={task.id: _judged(task, result) for task, result in zip(tasks, attempted)},
    )


def _judged(task: Task, attempted: Attempted) -> EvalTask:
    return EvalTask(
        domain=task.domain,
        score=attempted.verdict.score if attempted.verdict else None,
        outcome=attempted.trajectory.outcome.value,
        response=attempted.trajectory.response,
    )
