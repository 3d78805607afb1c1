"""From attempts to rewards. `verify` is the only place where a verifier is called.

The one thing to know: a reward of 0 always means that the policy did badly. What the machinery or
the verifier got wrong leaves the attempt without a verdict, under a named outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from practicum.environment.domains.registry import DOMAINS
from practicum.errors import GraderError, InfraError, SandboxError, UsageError, did_you_mean
from practicum.protocols import Sandbox, SandboxPool, SandboxSpec, Verifier
from practicum.types import Failure, Outcome, Task, Trajectory
from practicum.verdicts import Verdict, penalty

__all__ = ["VERIFIER_REGISTRY", "RewardHub", "compute_reward", "penalty", "verify"]

DEFAULT_TIMEOUT_S = 30.0
"""For callers that know no limit of the domain's own."""
MAX_CONCURRENT = 8
"""Verifiers at work at a time in one event loop, whoever asked: each may hold a sandbox."""

Result = TypeVar("Result")

_gates: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}


class _Verifiers(Mapping[str, Verifier]):
    """A live, read-only view of `DOMAINS`."""

    def __getitem__(self, domain: str) -> Verifier:
        return DOMAINS[domain].verifier

    def __iter__(self) -> Iterator[str]:
        return iter(DOMAINS)

    def __len__(self) -> int:
        return len(DOMAINS)


VERIFIER_REGISTRY: Mapping[str, Verifier] = _Verifiers()


@dataclass(frozen=True, slots=True)
class NoSandboxes:
    """Stands where sandboxes would be, for domains whose verifier runs no code."""

    isolation: Literal["namespaces", "none"] = "none"

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        raise SandboxError("this verifier runs code, but no sandboxes were given to run it in")

    def close(self) -> None:
        pass


async def verify(
    task: Task,
    trajectory: Trajectory,
    sandboxes: SandboxPool,
    verifiers: Mapping[str, Verifier] = VERIFIER_REGISTRY,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> tuple[Trajectory, Verdict | None]:
    """Judge one attempt: the attempt with its final outcome, and a verdict exactly if that counts.

    `timeout_s` and `usage.verify_s` are of the verifier at work; waiting for a place is neither.
    Raises UsageError if no verifier is known for the task's domain; what goes wrong inside of a
    verifier becomes the attempt's failure instead.
    """
    if not trajectory.outcome.counts:
        return trajectory, None
    verifier = _verifier_of(task, verifiers)
    if trajectory.outcome is Outcome.MODEL_FAILURE:
        assert trajectory.failure, "an attempt that failed says why"
        evidence = f"model_failure/{trajectory.failure.kind}: {trajectory.failure.message}"
        return trajectory, Verdict(0.0, verifier.id, evidence=evidence)
    async with _gate():
        started_s = time.perf_counter()
        verdict, outcome, failure = await _judge(verifier, task, trajectory, sandboxes, timeout_s)
        usage = replace(trajectory.usage, verify_s=time.perf_counter() - started_s)
    return replace(trajectory, outcome=outcome, failure=failure, usage=usage), verdict


def compute_reward(task: Task, rollout: Trajectory, sandboxes: SandboxPool | None = None) -> float:
    """Score minus bounded penalties. Raises GraderError or InfraError if there is none, never 0."""
    ((judged, result),) = _run(RewardHub({task.id: task}, sandboxes).judge([rollout]))
    if result is None:
        raise _unscored(judged)
    return result.reward


@dataclass(frozen=True, slots=True)
class RewardHub:
    """Scores many attempts at once, and re-scores stored ones.

    Example:
        >>> rewards = RewardHub(task_pool).score(trajectories)
        >>> rewards[trajectories[0].id].reward
        0.9
    """

    tasks: Mapping[str, Task]
    sandboxes: SandboxPool | None = None

    def __post_init__(self) -> None:
        _require_sandboxes(self.tasks.values(), self.sandboxes)

    def score(
        self,
        trajectories: Iterable[Trajectory],
        verifiers: Mapping[str, Verifier] = VERIFIER_REGISTRY,
    ) -> dict[str, Verdict]:
        """Verdicts by trajectory id, of exactly the attempts that count; blocks till all are in."""
        judged = _run(self.judge(trajectories, verifiers))
        return {trajectory.id: verdict for trajectory, verdict in judged if verdict is not None}

    async def judge(
        self,
        trajectories: Iterable[Trajectory],
        verifiers: Mapping[str, Verifier] = VERIFIER_REGISTRY,
    ) -> list[tuple[Trajectory, Verdict | None]]:
        """What `score` does, for callers inside an event loop; also says how each attempt ended."""
        attempts = [(self._task_of(trajectory), trajectory) for trajectory in trajectories]
        for task, _ in attempts:
            _verifier_of(task, verifiers)  # before any work starts, so that a typo costs nothing
        sandboxes = self.sandboxes or NoSandboxes()
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(
                    verify(task, trajectory, sandboxes, verifiers, timeout_s=_limit_s(task.domain))
                )
                for task, trajectory in attempts
            ]
        return [work.result() for work in running]

    def _task_of(self, trajectory: Trajectory) -> Task:
        task = self.tasks.get(trajectory.task_id)
        if task is None:
            raise UsageError(
                f"attempt {trajectory.id} is at task {trajectory.task_id}, which is not among "
                "the tasks of this RewardHub; give it the pool that the attempts were drawn from"
            )
        return task


def _gate() -> asyncio.Semaphore:
    """The running event loop's own: a semaphore cannot be shared between two of them."""
    for loop in [loop for loop in list(_gates) if loop.is_closed()]:
        _gates.pop(loop, None)  # by hand: a semaphore refers to its loop, so weak keys would stay
    return _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_CONCURRENT))


async def _judge(
    verifier: Verifier, task: Task, trajectory: Trajectory, sandboxes: SandboxPool, limit_s: float
) -> tuple[Verdict | None, Outcome, Failure | None]:
    where = f"verifier {verifier.id.name}"
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            verdict = await verifier.verify(task, trajectory, sandboxes)
    except InfraError as error:
        kind = "sandbox_error" if isinstance(error, SandboxError) else "infra_error"
        return None, Outcome.INFRA_FAILURE, Failure(kind, str(error), where)
    except Exception as error:
        if limit.expired():
            failure = Failure("verifier_timeout", f"no verdict within {limit_s} s", where)
        elif isinstance(error, GraderError):
            failure = Failure("grader_error", str(error), where)
        else:
            failure = Failure("verifier_error", f"{type(error).__name__}: {error}", where)
        return None, Outcome.GRADER_FAILURE, failure
    if verdict.unscorable is not None:
        return None, Outcome.GRADER_FAILURE, Failure("unscorable", verdict.unscorable, where)
    return verdict, Outcome.SCORED, None


def _verifier_of(task: Task, verifiers: Mapping[str, Verifier]) -> Verifier:
    try:
        return verifiers[task.domain]
    except KeyError:
        raise UsageError(
            f"task {task.id} is of domain {task.domain!r}, which has no verifier here."
            f"{did_you_mean(task.domain, verifiers)}"
        ) from None


def _limit_s(domain: str) -> float:
    known = DOMAINS.get(domain)
    return known.limits.verify_timeout_s if known else DEFAULT_TIMEOUT_S


def _require_sandboxes(tasks: Iterable[Task], sandboxes: SandboxPool | None) -> None:
    if sandboxes is not None:
        return
    for name in {task.domain for task in tasks}:
        domain = DOMAINS.get(name)
        if domain is not None and domain.needs_sandbox:
            raise UsageError(
                f"tasks of domain {name!r} are judged by running the policy's code; "
                "pass `sandboxes=open_pool()` from practicum.environment.sandbox"
            )


def _unscored(trajectory: Trajectory) -> GraderError | InfraError:
    failure = trajectory.failure
    reason = f"{failure.kind}: {failure.message}" if failure else "no reason given"
    message = f"attempt {trajectory.id} has no reward ({trajectory.outcome}, {reason})"
    if trajectory.outcome is Outcome.GRADER_FAILURE:
        return GraderError(message)
    return InfraError(message)


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise UsageError(
        "this is the blocking form for plain scripts; inside a running event loop, "
        "await `RewardHub.judge(...)` or `verify(...)` instead"
    )
