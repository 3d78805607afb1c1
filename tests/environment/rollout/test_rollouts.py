"""Groups of attempts: their names, their random streams, and how they end together."""

import asyncio
import random

import pytest

from fakes import SameText, letter_task, letters_domain
from practicum.environment.rollout.rollouts import RolloutEngine
from practicum.errors import GraderError, PolicyDead, UsageError
from practicum.testing import FakePolicy, FakeSandboxPool
from practicum.types import Outcome, Task, Trajectory

TASKS = [letter_task(letter) for letter in "abc"]


def engine(
    verifier: SameText | None = None, *, seed: int = 0, next_slot: int = 0, group_size: int = 6
) -> RolloutEngine:
    return RolloutEngine(
        domains={"letters": letters_domain(verifier)},
        sandboxes=FakeSandboxPool(),
        group_size=group_size,
        temperature=1.0,
        seed=seed,
        next_slot=next_slot,
    )


def chatty() -> FakePolicy:
    return FakePolicy(lambda prompt, rng: "".join(rng.choices("abcdefgh", k=4)))


async def test_a_group_is_named_by_its_slot_and_its_attempts_by_sample() -> None:
    group = await engine().roll_out(chatty(), TASKS[0], 12)
    assert group.id == "000012"
    assert group.task == TASKS[0]
    assert [t.id for t in group.trajectories] == [f"000012-{i:02d}" for i in range(6)]
    assert [t.sample for t in group.trajectories] == list(range(6))
    assert {t.group_id for t in group.trajectories} == {"000012"}


async def test_attempts_keep_their_order_whichever_ends_first() -> None:
    rng = random.Random(3)

    async def straggle(prompt: str) -> None:
        for _ in range(rng.randrange(10)):
            await asyncio.sleep(0)

    policy = chatty()
    steady = await engine().roll_out(policy, TASKS[0], 0)
    policy.before = straggle
    straggling = await engine().roll_out(policy, TASKS[0], 0)
    assert [t.response for t in straggling.trajectories] == [
        t.response for t in steady.trajectories
    ]


async def test_samples_differ_and_a_repeat_is_equal() -> None:
    first = await engine().roll_out(chatty(), TASKS[0], 4)
    again = await engine().roll_out(chatty(), TASKS[0], 4)
    elsewhere = await engine(seed=1).roll_out(chatty(), TASKS[0], 4)
    said = [[t.response for t in group.trajectories] for group in (first, again, elsewhere)]
    assert said[0] == said[1]
    assert said[0] != said[2]
    assert len(set(said[0])) > 1


async def test_verdicts_are_there_exactly_for_what_counts() -> None:
    def judge(task: Task, rollout: Trajectory) -> None:
        if rollout.sample == 2:
            raise GraderError("cannot tell")

    group = await engine(SameText(judge)).roll_out(
        FakePolicy(lambda prompt, rng: prompt[-1]), TASKS[0], 0
    )
    assert group.verdicts.keys() == {t.id for t in group.trajectories if t.sample != 2}
    assert group.trajectories[2].outcome is Outcome.GRADER_FAILURE
    assert group.pass_rate == 1.0


@pytest.mark.parametrize("error", [PolicyDead("the engine is gone"), UsageError("no room")])
async def test_an_error_that_stops_the_run_leaves_no_sibling_running(error: Exception) -> None:
    num_calls = 0

    async def last_one_fails(prompt: str) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 6:
            raise error
        await asyncio.Event().wait()

    policy, before = FakePolicy(lambda prompt, rng: "a", before=last_one_fails), asyncio.all_tasks()
    with pytest.raises(type(error)) as raised:
        await engine().roll_out(policy, TASKS[0], 0)
    assert raised.value is error
    assert asyncio.all_tasks() == before


async def test_all_attempts_of_a_group_reach_the_policy_before_any_goes_on() -> None:
    policy = FakePolicy(lambda prompt, rng: "a")
    seen: list[int] = []

    async def look(prompt: str) -> None:
        await asyncio.sleep(0)
        seen.append(policy.num_calls)

    policy.before = look
    await engine().roll_out(policy, TASKS[0], 0)
    assert seen == [6] * 6


def test_generate_plays_every_task_and_judges_nothing() -> None:
    rollouts = engine(next_slot=5, group_size=2)
    trajectories = rollouts.generate(chatty(), TASKS)
    assert [t.id for t in trajectories] == [
        "000005-00", "000005-01", "000006-00", "000006-01", "000007-00", "000007-01"
    ]  # fmt: skip
    assert [t.task_id for t in trajectories] == [task.id for task in TASKS for _ in range(2)]
    assert {t.outcome for t in trajectories} == {Outcome.SCORED}
    assert {t.usage.verify_s for t in trajectories} == {0.0}
    assert rollouts.next_slot == 8
    assert rollouts.generate(chatty(), TASKS[:1])[0].id == "000008-00"


def test_generate_says_what_roll_out_says() -> None:
    trajectories = engine().generate(chatty(), TASKS[:1])
    group = asyncio.run(engine().roll_out(chatty(), TASKS[0], 0))
    assert [t.segments for t in trajectories] == [t.segments for t in group.trajectories]


def test_generate_refuses_tools_by_name() -> None:
    rollouts = engine()
    with pytest.raises(UsageError, match="no such tools: calculator, shell"):
        rollouts.generate(chatty(), TASKS, tools=["calculator", "shell"])
    assert rollouts.next_slot == 0
