"""The one attempt function: training, evaluation and quality control all call it.

Play, then verify. Whatever goes wrong on the way becomes a typed outcome; only a dead policy and a
setting that cannot work stop the run.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from practicum.environment.domains.domain import Domain
from practicum.environment.domains.reward import verify
from practicum.environment.rollout.play import AttemptKey, play
from practicum.errors import PolicyDead, PracticumError, UsageError
from practicum.protocols import Policy, SandboxPool
from practicum.types import Failure, Outcome, StopReason, Task, Trajectory
from practicum.verdicts import Verdict

MAX_MESSAGE_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Attempted:
    """A finished attempt. The verdict is there exactly if the outcome counts."""

    trajectory: Trajectory
    verdict: Verdict | None

    def __post_init__(self) -> None:
        assert (self.verdict is not None) == self.trajectory.outcome.counts


async def attempt(
    task: Task,
    policy: Policy,
    sandboxes: SandboxPool,
    domains: Mapping[str, Domain],
    key: AttemptKey,
    temperature: float,
) -> Attempted:
    """Roll out one trajectory and judge it. Raises PolicyDead and UsageError, nothing else."""
    trajectory = await play_safely(task, policy, domains, key, temperature)
    verifiers = {task.domain: domains[task.domain].verifier}
    timeout_s = domains[task.domain].limits.verify_timeout_s
    return Attempted(*await verify(task, trajectory, sandboxes, verifiers, timeout_s=timeout_s))


async def play_safely(
    task: Task,
    policy: Policy,
    domains: Mapping[str, Domain],
    key: AttemptKey,
    temperature: float,
) -> Trajectory:
    """`play`, with any failure of the machinery recorded in the trajectory instead of raised."""
    try:
        return await play(task, policy, domains[task.domain].limits, key, temperature)
    except (PolicyDead, UsageError):
        raise
    except Exception as error:  # an infrastructure fault, or our own: kept, counted, never a reward
        return Trajectory(
            id=key.trajectory_id,
            group_id=key.group_id,
            task_id=task.id,
            sample=key.sample,
            messages=task.prompt,
            segments=(),
            stop_reason=StopReason.ABORTED,
            outcome=Outcome.INFRA_FAILURE,
            failure=Failure(kind=type(error).__name__, message=_message(error), where="play"),
        )


def _message(error: Exception) -> str:
    """What was raised on purpose says enough; of anything else, the end of the traceback."""
    if isinstance(error, PracticumError):
        return str(error)[:MAX_MESSAGE_CHARACTERS]
    return "".join(traceback.format_exception(error))[-MAX_MESSAGE_CHARACTERS:]
