import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fakes import InOrder, SameText, letter_task, letters_domain
from practicum.environment.domains.domain import Domain
from practicum.environment.qc.report import EnvQC
from practicum.environment.rollout.rollouts import RolloutEngine
from practicum.errors import GraderError, InfraError, PolicyDead
from practicum.loop import Loop
from practicum.observe.checkpoints import Checkpoints
from practicum.observe.store import TrajectoryStore
from practicum.protocols import Metrics
from practicum.testing import FakePolicy, FakeSandboxPool, FakeTrainer
from practicum.types import Outcome, Task, Trajectory

TASKS = {task.id: task for task in map(letter_task, "abcdefgh")}


def coin(prompt: str, rng: random.Random) -> str:
    """Right half of the time."""
    return prompt[-1] if rng.random() < 0.5 else "?"


@dataclass
class Rig:
    """A loop on fakes, and everything a test wants to look at."""

    loop: Loop
    trainer: FakeTrainer
    store: TrajectoryStore
    rows: list[Metrics] = field(default_factory=list)

    def log(self, step: int, metrics: Metrics) -> None:
        assert step == len(self.rows)
        self.rows.append(metrics)


def rig(
    folder: Path,
    policy: FakePolicy,
    *,
    domain: Domain | None = None,
    max_staleness: int = 0,
    min_group_size: int = 2,
    checkpoint: Callable[[int], None] = lambda done: None,
) -> Rig:
    trainer = FakeTrainer()
    store = TrajectoryStore(folder)
    curriculum = InOrder(TASKS)
    loop = Loop(
        policy=policy,
        reference=None,
        trainer=trainer,
        curriculum=curriculum,
        rollouts=RolloutEngine(
            domains={"letters": domain or letters_domain()},
            sandboxes=FakeSandboxPool(),
            group_size=4,
            temperature=1.0,
            seed=0,
        ),
        env_qc=EnvQC(TASKS, observers=[curriculum.observe]),
        store=store,
        sinks=[],
        groups_per_step=2,
        max_staleness=max_staleness,
        min_group_size=min_group_size,
        checkpoint=checkpoint,
    )
    made = Rig(loop, trainer, store)
    loop.sinks = [made]
    return made


async def test_a_run_trains_every_group_once_and_in_order(tmp_path: Path):
    it = rig(tmp_path, FakePolicy(coin))
    await it.loop.run(until=5)
    assert it.trainer.version == 5
    assert [len(step) for step in it.trainer.trained] == [8] * 5
    assert it.store.ledger.steps() == {f"{slot:06d}": slot // 2 for slot in range(10)}
    assert all(row["staleness/max"] == 0 for row in it.rows)
    assert 0 < sum(row["reward/mean"] for row in it.rows) / 5 < 1


async def test_the_same_seed_gives_the_same_training(tmp_path: Path):
    one, two = rig(tmp_path / "a", FakePolicy(coin)), rig(tmp_path / "b", FakePolicy(coin))
    await one.loop.run(until=4)
    await two.loop.run(until=4)
    assert one.trainer.digest == two.trainer.digest


async def test_every_trajectory_is_stored_before_it_is_trained_on(tmp_path: Path):
    it = rig(tmp_path, FakePolicy(coin))
    update = it.trainer.update

    def check(policy: object, reference: object, trajectories: list[Trajectory], rewards: object):
        assert all(it.store.trajectory(t.id) for t in trajectories)
        return update(policy, reference, trajectories, rewards)  # type: ignore[arg-type]

    it.trainer.update = check  # type: ignore[method-assign]
    await it.loop.run(until=2)
    assert len(it.trainer.trained) == 2


async def test_a_group_that_loses_members_is_trained_with_the_rest(tmp_path: Path):
    def judge(task: Task, rollout: Trajectory) -> None:
        if rollout.sample == 0:
            raise GraderError("cannot tell")

    it = rig(tmp_path, FakePolicy(coin), domain=letters_domain(SameText(judge)))
    await it.loop.run(until=2)
    assert [len(step) for step in it.trainer.trained] == [6, 6]
    assert it.rows[0]["attempts/grader_failure"] == 2
    assert it.store.trajectory("000000-00").trajectory.outcome is Outcome.GRADER_FAILURE


async def test_a_group_below_its_least_size_is_dropped_counted_and_replaced(tmp_path: Path):
    def judge(task: Task, rollout: Trajectory) -> None:
        if rollout.group_id == "000000":
            raise InfraError("the disk is gone")

    it = rig(tmp_path, FakePolicy(coin), domain=letters_domain(SameText(judge)))
    await it.loop.run(until=2)
    assert it.rows[0]["groups/dropped"] == 1
    assert it.rows[1]["groups/dropped"] == 0
    assert "000000" not in it.store.ledger.steps()
    assert it.store.group("000000").counted == (), "what was dropped is kept all the same"
    assert it.trainer.version == 2


async def test_an_attempt_that_raises_is_a_failure_of_ours_and_never_a_reward(tmp_path: Path):
    async def sometimes(prompt: str) -> None:
        if prompt.endswith("a"):
            raise RuntimeError("a bug")

    it = rig(tmp_path, FakePolicy(coin, before=sometimes))
    await it.loop.run(until=2)
    lost = it.store.group("000000")
    assert {t.outcome for t in lost.trajectories} == {Outcome.INFRA_FAILURE}
    assert {t.failure.kind for t in lost.trajectories if t.failure} == {"RuntimeError"}
    assert lost.verdicts == {}
    assert it.rows[0]["groups/dropped"] == 1


async def test_a_dead_policy_stops_the_run_by_name_and_keeps_what_was_done(tmp_path: Path):
    calls = 0

    async def dies(prompt: str) -> None:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise PolicyDead("the engine's thread ended")

    it = rig(tmp_path, FakePolicy(coin, before=dies))
    with pytest.raises(PolicyDead, match="thread ended"):
        await asyncio.wait_for(it.loop.run(until=10), timeout=10)
    assert it.trainer.version == 2
    assert len(it.store.ledger.steps()) == 4


async def test_a_machine_that_loses_everything_ends_the_run_instead_of_spinning(tmp_path: Path):
    def judge(task: Task, rollout: Trajectory) -> None:
        raise InfraError("no sandbox host")

    it = rig(tmp_path, FakePolicy(coin), domain=letters_domain(SameText(judge)))
    with pytest.raises(InfraError, match="groups in a row"):
        await asyncio.wait_for(it.loop.run(until=1), timeout=20)


async def test_shutdown_in_the_middle_leaves_no_task_behind_and_loses_nothing(tmp_path: Path):
    reached, before = asyncio.Event(), asyncio.all_tasks()

    async def hangs(prompt: str) -> None:
        if it.trainer.version == 2:
            reached.set()
            await asyncio.Event().wait()

    it = rig(tmp_path, FakePolicy(coin, before=hangs), max_staleness=1)
    running = asyncio.create_task(it.loop.run(until=10))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before
    assert set(it.store.ledger.steps().values()) <= {0, 1, 2}


async def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path):
    whole = rig(tmp_path / "whole", FakePolicy(coin))
    await whole.loop.run(until=6)

    checkpoints = Checkpoints(tmp_path / "ckpt", keep=2)

    def checkpoint(done: int) -> None:
        if done % 2 == 0:
            state = {"next_slot": first.loop.rollouts.next_slot}
            checkpoints.save(done, first.trainer.save, state)

    policy = FakePolicy(coin)
    first = rig(tmp_path / "parts", policy, checkpoint=checkpoint)
    await first.loop.run(until=5)  # a step beyond its last checkpoint
    first.store.close()

    last = checkpoints.latest()
    assert last is not None
    assert last.step == 4
    second = rig(tmp_path / "parts", FakePolicy(coin))
    second.trainer.load(last.folder)
    second.loop.rollouts.next_slot = last.state["next_slot"]
    second.store.rewind(last.step)
    second.rows = [{}] * last.step
    await second.loop.run(until=6)
    assert second.trainer.digest == whole.trainer.digest
    assert second.rows[5].keys() == whole.rows[5].keys()
    assert second.store.ledger.steps() == whole.store.ledger.steps()


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_stragglers_never_break_the_staleness_bound(tmp_path: Path, max_staleness: int):
    rng = random.Random(7)

    async def straggle(prompt: str) -> None:
        for _ in range(rng.choice([0, 0, 0, 3, 40])):
            await asyncio.sleep(0)

    it = rig(tmp_path, FakePolicy(coin, before=straggle), max_staleness=max_staleness)
    await asyncio.wait_for(it.loop.run(until=12), timeout=30)
    assert all(row["staleness/max"] <= max_staleness for row in it.rows)
    assert len(it.store.ledger.steps()) == 24
    if max_staleness:
        assert max(row["staleness/max"] for row in it.rows) > 0, "rollouts never ran ahead"
