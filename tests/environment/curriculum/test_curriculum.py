"""The curriculum: deterministic, resumable, and drawn to what can be learnt."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.environment.curriculum import PassRateCurriculum, Scheduler
from practicum.environment.domains import draw_pool, get_domain
from practicum.errors import UsageError
from practicum.protocols import Curriculum
from practicum.types import Task
from practicum.verdicts import Report, TaskResult

NAMES = ("addition", "reversal", "max_of_three")
POOL = draw_pool(map(get_domain, NAMES), seed=0, split="train", size=60)
SHARES = {"addition": 2.0, "reversal": 1.0, "max_of_three": 1.0}


def new(seed: int = 0) -> PassRateCurriculum:
    return PassRateCurriculum(POOL, SHARES, seed=seed, floor=0.05)


def report(step: int, tasks: list[Task], rng: random.Random) -> Report:
    results = tuple(
        TaskResult(task.id, task.domain, task.difficulty, rng.randint(0, 8), 8, 8) for task in tasks
    )
    return Report(step, results, {})


def run(curriculum: PassRateCurriculum, steps: range) -> list[str]:
    ids: list[str] = []
    for step in steps:
        tasks = [curriculum.sample(slot) for slot in range(8 * step, 8 * step + 8)]
        ids += [task.id for task in tasks]
        curriculum.observe(report(step, tasks, random.Random(step)))
    return ids


def test_equal_seeds_and_reports_give_equal_tasks() -> None:
    assert run(new(), range(12)) == run(new(), range(12))
    assert run(new(), range(12)) != run(new(seed=1), range(12))


@given(asked=st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_the_task_of_a_slot_depends_neither_on_the_order_of_asking_nor_on_repeats(
    asked: list[int],
) -> None:
    in_order, curriculum = new(), new()
    expected = [in_order.sample(slot) for slot in range(41)]
    assert [curriculum.sample(slot) for slot in asked] == [expected[slot] for slot in asked]


def test_a_settled_slot_stays_what_it_is_when_reports_come_in() -> None:
    curriculum = new()
    tasks = [curriculum.sample(slot) for slot in range(8)]
    curriculum.observe(report(0, tasks, random.Random(0)))
    assert [curriculum.sample(slot) for slot in range(8)] == tasks


@given(stop=st.integers(0, 9))
def test_a_restored_curriculum_continues_exactly(stop: int) -> None:
    whole = run(new(), range(10))
    first, second = new(), new()
    ids = run(first, range(stop))
    first.sample(8 * stop + 2)  # on its way when the state is saved
    state: dict[str, Any] = json.loads(json.dumps(first.state(), sort_keys=True))
    second.restore(state)
    assert second.state() == first.state()
    assert ids + run(second, range(stop, 10)) == whole


def test_a_state_of_another_pool_or_seed_is_refused() -> None:
    state = new().state()
    with pytest.raises(UsageError, match="resume with the recipe"):
        new(seed=1).restore(state)
    smaller = draw_pool(map(get_domain, NAMES), seed=0, split="train", size=59)
    with pytest.raises(UsageError, match="resume with the recipe"):
        PassRateCurriculum(smaller, SHARES, seed=0).restore(state)


def test_shares_of_the_domains_are_kept() -> None:
    counts = Counter(new().sample(slot).domain for slot in range(40))
    assert counts == {"addition": 20, "reversal": 10, "max_of_three": 10}


def test_no_task_comes_twice_within_an_epoch() -> None:
    curriculum = new()
    of_domain = [
        task.id for slot in range(120) if (task := curriculum.sample(slot)).domain == "addition"
    ]
    epochs = [of_domain[:30], of_domain[30:60]]
    assert [len(set(epoch)) for epoch in epochs] == [30, 30]


def test_practice_moves_to_the_level_that_is_half_solved() -> None:
    curriculum = PassRateCurriculum(POOL, {"addition": 1.0}, seed=0)
    passes = {0.0: 8, 0.5: 4, 1.0: 0}
    drawn: list[float] = []
    for step in range(30):
        task = curriculum.sample(step)
        drawn.append(task.difficulty)
        result = TaskResult(task.id, task.domain, task.difficulty, passes[task.difficulty], 8, 8)
        curriculum.observe(Report(step, (result,), {}))
    counts = Counter(drawn)
    assert counts[0.5] > counts[0.0] + counts[1.0]


def test_a_share_without_tasks_is_refused() -> None:
    with pytest.raises(UsageError, match="no task of transitive"):
        PassRateCurriculum(POOL, {"addition": 1.0, "transitive": 1.0}, seed=0)


def test_it_satisfies_the_protocol_of_curricula() -> None:
    curriculum: Curriculum = new()
    assert curriculum.sample(0).id in POOL


def test_the_scheduler_hands_out_consecutive_steps() -> None:
    scheduler, curriculum = Scheduler(new(), groups_per_step=5), new()
    steps = [scheduler.sample(POOL, domains=NAMES) for _ in range(3)]
    assert [task for step in steps for task in step] == [curriculum.sample(i) for i in range(15)]


def test_the_scheduler_refuses_another_pool_and_other_domains() -> None:
    scheduler = Scheduler(new(), groups_per_step=5)
    with pytest.raises(UsageError, match="is not the curriculum's"):
        scheduler.sample(draw_pool([get_domain("addition")], seed=0, split="train", size=5), NAMES)
    with pytest.raises(UsageError, match=r"'addition', 'reversal'\] asked for"):
        scheduler.sample(POOL, ["addition", "reversal"])
    assert scheduler.next_slot == 0
