"""Slots in, groups out: staleness is bounded by construction, not by hope.

A slot is reserved before its task is sampled and carries the version of that moment. With B groups
a step and a bound of S versions, at most (S + 1) * B slots are outstanding, and a slot reserved at
version v must be trained on at version v + S at the latest. Ready groups may overtake slow ones, as
long as every outstanding slot can still meet its deadline; otherwise the step waits.

S = 0 is synchronous on-policy training: B slots, all trained before the next is reserved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from practicum.errors import InfraError
from practicum.types import WeightVersion
from practicum.verdicts import Group

MAX_DROPS_IN_A_ROW = 64
"""More lost groups without one success means that the machinery is broken, not unlucky."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Permission to roll out one group."""

    number: int
    """Counts all reservations of a run, dropped ones included."""
    deadline: WeightVersion
    """Last version that may be trained with this group."""


class Buffer:
    """Lives on one event loop; none of its methods may be called from another thread."""

    def __init__(
        self,
        *,
        groups_per_step: int,
        max_staleness: int,
        min_group_size: int,
        step: int,
        last_step: int,
        next_slot: int,
    ) -> None:
        """`step`, the next to train, equals the current version; `last_step` is exclusive."""
        self.groups_per_step = groups_per_step
        self.max_staleness = max_staleness
        self.min_group_size = min_group_size
        self.version = WeightVersion(step)
        self.last_step = last_step
        self.next_slot = next_slot
        self.lost: list[Group] = []
        """Groups dropped since the last step."""
        self._in_training = 0
        self._outstanding: dict[int, Slot] = {}
        self._ready: dict[int, Group] = {}
        self._drops_in_a_row = 0
        self._changed = asyncio.Event()

    async def reserve(self) -> Slot:
        """Wait until another group may start. Never returns once the last step's groups are out."""
        await self._until(lambda: len(self._outstanding) + self._in_training < self._capacity())
        slot = Slot(self.next_slot, WeightVersion(self.version + self.max_staleness))
        self.next_slot += 1
        self._outstanding[slot.number] = slot
        return slot

    def put(self, slot: Slot, group: Group) -> None:
        """The group of this slot is complete, or, if too few attempts count, dropped.

        The place of a dropped group is given to a new slot. Raises InfraError if nothing but drops
        has come for a long time.
        """
        if len(group.counted) < self.min_group_size:
            self._drop(slot, group)
        else:
            self._ready[slot.number] = group
            self._drops_in_a_row = 0
        self._notify()

    async def take(self) -> list[Group]:
        """The groups of the next step, in slot order; waits until all deadlines can be kept."""
        await self._until(self._can_take)
        ready = sorted(self._ready, key=lambda number: (self._outstanding[number].deadline, number))
        chosen = sorted(ready[: self.groups_per_step])
        for number in chosen:
            slot = self._outstanding.pop(number)
            assert slot.deadline >= self.version, f"slot {number} missed its staleness bound"
        self._in_training = len(chosen)
        return [self._ready.pop(number) for number in chosen]

    def advance(self) -> None:
        """The step's weights are published: younger slots may be reserved."""
        self.version = WeightVersion(self.version + 1)
        self._in_training = 0
        self.lost = []
        self._notify()

    def _drop(self, slot: Slot, group: Group) -> None:
        del self._outstanding[slot.number]
        self.lost.append(group)
        self._drops_in_a_row += 1
        if self._drops_in_a_row >= MAX_DROPS_IN_A_ROW:
            raise InfraError(
                f"{self._drops_in_a_row} groups in a row lost their attempts to failures that are "
                "not the policy's; see the last trajectories (`practicum view RUN`)"
            )

    def _capacity(self) -> int:
        steps_ahead = min(self.max_staleness + 1, self.last_step - self.version)
        return steps_ahead * self.groups_per_step

    def _can_take(self) -> bool:
        """Whether the earliest ready groups leave a schedule in which no outstanding slot is late.

        After this step, `(deadline - version) * B` places are left up to any deadline.
        """
        if len(self._ready) < self.groups_per_step:
            return False
        outstanding = Counter(slot.deadline for slot in self._outstanding.values())
        ready = Counter(self._outstanding[number].deadline for number in self._ready)
        deadlines = sorted(outstanding)
        due = accumulate(outstanding[deadline] for deadline in deadlines)
        done = accumulate(ready[deadline] for deadline in deadlines)
        return all(
            num_done >= num_due - (deadline - self.version) * self.groups_per_step
            for deadline, num_due, num_done in zip(deadlines, due, done)
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
