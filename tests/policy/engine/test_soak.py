"""Thousands of random operations: every completion is what it would be alone, and nothing leaks."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from policy.engine.paper import VOCABULARY, PaperEngine, prompt, request
from practicum.errors import UsageError

SALTS = ["", "adapter"]


def guess(engine: PaperEngine, rng: random.Random) -> None:
    """Drafts for some, also for several that agree so far."""
    for sequence in engine.scheduler.running:
        if rng.random() < 0.5:
            count = rng.randint(1, 5)
            sequence.drafts = tuple(rng.randrange(VOCABULARY) for _ in range(count))


class EngineMachine(RuleBasedStateMachine):
    """Hypothesis looks for the shortest sequence of operations that breaks something."""

    @initialize(
        num_pages=st.integers(4, 10),
        num_slots=st.integers(0, 4),
        max_rows=st.integers(1, 5),
        disk=st.none() | st.integers(0, 4),
    )
    def start(self, num_pages: int, num_slots: int, max_rows: int, disk: int | None) -> None:
        self.engine = PaperEngine(
            disk, num_pages=num_pages, num_slots=num_slots, max_rows=max_rows, max_step_tokens=40
        )
        self.seeds = iter(range(1_000_000))

    @rule(
        num_shared=st.integers(1, 100),
        own=st.integers(0, VOCABULARY - 1),
        max_new_tokens=st.integers(1, 60),
        group=st.integers(1, 4),
        salt=st.sampled_from(SALTS),
    )
    def add(self, num_shared: int, own: int, max_new_tokens: int, group: int, salt: str) -> None:
        tokens = prompt(num_shared, own)
        wanted = [request(tokens, max_new_tokens, next(self.seeds), salt) for _ in range(group)]
        try:
            self.engine.add(*wanted)
        except UsageError:
            needed = len(tokens) + max_new_tokens - 1
            assert needed > 32 * self.engine.scheduler.tables.pages.total

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = [asked for asked in self.engine.requests if asked.stop_reason is None]
        if live:
            self.engine.scheduler.abort(data.draw(st.sampled_from(live)))

    @rule(count=st.integers(1, 12), seed=st.integers(0, 99))
    def step(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(count):
            guess(self.engine, rng)
            self.engine.step()

    @rule()
    def publish(self) -> None:
        self.engine.publish()

    @rule(num_slots=st.integers(0, 6))
    def resize_swap(self, num_slots: int) -> None:
        self.engine.scheduler.resize_swap(num_slots)

    @rule(disk=st.none() | st.integers(0, 6))
    def resize_disk(self, disk: int | None) -> None:
        self.engine.disk = disk

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.run()
            self.engine.check_end()


EngineMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True
)
TestEngineMachine = EngineMachine.TestCase


def operate(engine: PaperEngine, rng: random.Random, count: int, publish: float = 0.01) -> None:
    """So many random operations and then everything to its end; new weights at this rate."""
    for operation in range(count):
        kind = rng.random()
        if kind < 0.16 and len(engine.scheduler.waiting) < 10:
            tokens = prompt(rng.choice([5, 5, 5, 32, 40, 64, 90, 150]), *[rng.randrange(3)] * 3)
            most_new, salt = rng.choice([1, 10, 90, 120]), rng.choice(SALTS)
            group = rng.choice([1, 1, 2, 4])
            engine.add(
                *(request(tokens, most_new, rng.getrandbits(30), salt) for _ in range(group))
            )
        elif kind < 0.18:
            if not engine.scheduler.running:
                continue
            sequence = rng.choice([*engine.scheduler.running, *engine.scheduler.waiting])
            engine.scheduler.abort(rng.choice(sequence.requests))
        elif kind < 0.18 + publish:
            engine.publish()
        elif kind < 0.19 + publish:
            engine.scheduler.resize_swap(rng.choice([0, 2, 8, 20]))
        else:
            guess(engine, rng)
            engine.step()
        if operation % 25 == 0:
            engine.scheduler.check()
    engine.run()
    engine.check_end()


@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_random_operations_change_no_completion_and_leak_no_page(seed: int) -> None:
    engine = PaperEngine(num_pages=9 + seed, num_slots=8, max_rows=8, max_step_tokens=64)
    operate(engine, random.Random(seed), 10_000)
    happened = engine.scheduler.counters
    assert not engine.lost
    assert not happened.restarts
    assert (
        min(
            happened.hits,
            happened.joined_requests,
            happened.preemptions,
            happened.copied_pages,
            happened.swapped_out_pages,
            happened.swapped_in_pages,
            happened.dropped_pages,
        )
        > 30
    ), happened  # the pressure was real


@pytest.mark.parametrize(("seed", "disk"), [(0, 0), (1, 0), (2, 1)])
def test_a_full_disk_changes_no_completion_and_loses_none(seed: int, disk: int) -> None:
    engine = PaperEngine(disk, num_pages=9, num_slots=8, max_rows=8, max_step_tokens=64)
    operate(engine, random.Random(seed), 4_000, publish=0.0)
    assert not engine.lost
    assert engine.scheduler.counters.restarts > 1


@pytest.mark.parametrize(("seed", "disk"), [(0, 0), (1, 0), (2, 1)])
def test_a_full_disk_loses_few_under_new_weights_and_changes_no_other(seed: int, disk: int) -> None:
    engine = PaperEngine(disk, num_pages=9, num_slots=8, max_rows=8, max_step_tokens=64)
    operate(engine, random.Random(seed), 4_000, publish=0.03)
    happened = engine.scheduler.counters
    assert happened.restarts > 0
    assert 0 < happened.lost_requests == len(engine.lost) < 0.03 * len(engine.requests)
