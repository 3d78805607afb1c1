"""The RL loop: sample, roll out, verify, update, report. GRPO readers will find GRPO.

One loop, synchronous and asynchronous: rollouts run ahead of training by at most `max_staleness`
published policies, and 0 *is* synchronous on-policy training. What to do when something fails is
decided in the part that fails; what a resume needs is written before it is used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from practicum.environment.qc.report import EnvQC
from practicum.environment.rollout.rollouts import RolloutEngine
from practicum.environment.scheduling.buffer import Buffer, Slot
from practicum.observe.step_metrics import step_metrics
from practicum.protocols import Curriculum, Policy, Sink, Store, Trainer
from practicum.types import Task
from practicum.verdicts import judged


@dataclass(slots=True)
class Loop:
    """The parts of one run; `build.py` puts them together."""

    policy: Policy
    reference: Policy | None
    trainer: Trainer
    curriculum: Curriculum
    rollouts: RolloutEngine
    env_qc: EnvQC
    store: Store
    sinks: Sequence[Sink]
    groups_per_step: int
    max_staleness: int
    min_group_size: int
    checkpoint: Callable[[int], None]
    """Called after every step with the number of steps done; decides itself whether to write."""
    trainer_thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1))
    """One for all steps: every further thread would keep compute threads and memory of its own."""

    async def run(self, until: int) -> None:
        """Train until step `until`, from wherever the trainer stands."""
        buffer = Buffer(
            groups_per_step=self.groups_per_step,
            max_staleness=self.max_staleness,
            min_group_size=self.min_group_size,
            step=self.trainer.version,
            last_step=until,
            next_slot=self.rollouts.next_slot,
        )
        try:
            async with asyncio.TaskGroup() as workers:
                producer = workers.create_task(self._produce(buffer, workers))
                for step in range(self.trainer.version, until):
                    await self._step(step, buffer)
                producer.cancel()
        except BaseExceptionGroup as group:  # one cause is enough; the rest was cancelled for it
            raise group.exceptions[0] from None

    async def _produce(self, buffer: Buffer, workers: asyncio.TaskGroup) -> None:
        while True:
            slot = await buffer.reserve()
            task = self.curriculum.sample(slot.number)  # 1. sample
            workers.create_task(self._roll_out(buffer, slot, task))

    async def _roll_out(self, buffer: Buffer, slot: Slot, task: Task) -> None:
        # 2. roll out, 3. verify
        group = await self.rollouts.roll_out(self.policy, task, slot.number)
        await asyncio.to_thread(self.store.append, group)  # kept before it is trained on
        buffer.put(slot, group)

    async def _step(self, step: int, buffer: Buffer) -> None:
        started = time.perf_counter()
        groups = await buffer.take()
        taken = time.perf_counter()
        # 4. update
        update = partial(self.trainer.update, self.policy, self.reference, *judged(groups))
        trained = await asyncio.get_running_loop().run_in_executor(self.trainer_thread, update)
        lost = sorted(buffer.lost, key=lambda group: group.id)
        report = self.env_qc.report(*judged([*groups, *lost]))  # 5. report
        self.store.commit(step, [group.id for group in groups])
        metrics = {
            **step_metrics(step, groups, lost, report),
            **trained,
            "time/rollout_s": taken - started,
            "time/train_s": (ended := time.perf_counter()) - taken,
            "time/step_s": ended - started,
        }
        for sink in self.sinks:
            sink.log(step, metrics)
        self.rollouts.next_slot = buffer.next_slot
        self.checkpoint(step + 1)
        buffer.advance()
