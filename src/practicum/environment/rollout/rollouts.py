"""Groups of attempts: as one awaitable for the loop, and as the promised `generate` for scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from practicum.environment.domains.domain import Domain
from practicum.environment.rollout.attempt import attempt, play_safely
from practicum.environment.rollout.play import AttemptKey
from practicum.environment.rollout.side_by_side import side_by_side
from practicum.errors import UsageError
from practicum.protocols import Policy, SandboxPool
from practicum.types import Task, Trajectory
from practicum.verdicts import Group


class RolloutEngine:
    """Rolls out `group_size` attempts at a task, side by side."""

    def __init__(
        self,
        *,
        domains: Mapping[str, Domain],
        sandboxes: SandboxPool,
        group_size: int,
        temperature: float,
        seed: int,
        next_slot: int = 0,
    ) -> None:
        self.domains = domains
        self.sandboxes = sandboxes
        self.group_size = group_size
        self.temperature = temperature
        self.seed = seed
        self.next_slot = next_slot

    async def roll_out(self, policy: Policy, task: Task, slot: int) -> Group:
        """All attempts of one slot, judged."""
        attempted = await side_by_side(
            attempt(task, policy, self.sandboxes, self.domains, key, self.temperature)
            for key in self._keys(slot)
        )
        return Group(
            id=f"{slot:06d}",
            task=task,
            trajectories=tuple(a.trajectory for a in attempted),
            verdicts={a.trajectory.id: a.verdict for a in attempted if a.verdict is not None},
        )

    def generate(
        self, policy: Policy, tasks: Sequence[Task], tools: Sequence[str] = ()
    ) -> list[Trajectory]:
        """Roll out every task `group_size` times, unjudged; `RewardHub.score` comes next.

        Raises UsageError if a tool is asked for: the present domains answer in one turn.
        """
        if tools:
            raise UsageError(f"no such tools: {', '.join(tools)}; the present domains use none")

        trajectories = asyncio.run(
            side_by_side(
                play_safely(task, policy, self.domains, key, self.temperature)
                for slot, task in enumerate(tasks, self.next_slot)
                for key in self._keys(slot)
            )
        )
        self.next_slot += len(tasks)
        return trajectories

    def _keys(self, slot: int) -> list[AttemptKey]:
        return [AttemptKey.training(slot, i, self.seed) for i in range(self.group_size)]
