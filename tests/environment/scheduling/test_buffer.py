import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environment.domains.scripted import scripted
from practicum.environment.scheduling import buffer as buffer_module
from practicum.environment.scheduling.buffer import Buffer, Slot
from practicum.errors import InfraError
from practicum.types import Message, Task
from practicum.verdicts import Group, Verdict, VerifierId

TASK = Task.create(
    domain="any", prompt=(Message("text", "?"),), answer="!", difficulty=0.0, split="train"
)


def group_of(slot: Slot) -> Group:
    """A group with one attempt that counts."""
    made = scripted(TASK, "!")
    verdict = Verdict(score=1.0, verifier=VerifierId("any", "1", ""))
    return Group(f"{slot.number:06d}", TASK, trajectories=(made,), verdicts={made.id: verdict})


def lost_group(slot: Slot) -> Group:
    return Group(f"{slot.number:06d}", TASK, trajectories=(), verdicts={})


def make(groups_per_step: int, max_staleness: int, last_step: int) -> Buffer:
    return Buffer(
        groups_per_step=groups_per_step,
        max_staleness=max_staleness,
        min_group_size=1,
        step=0,
        last_step=last_step,
        next_slot=0,
    )


async def reserve_all(buffer: Buffer) -> list[Slot]:
    """Every slot that can be had right now."""
    slots: list[Slot] = []
    while True:
        try:
            slots.append(await asyncio.wait_for(buffer.reserve(), 0.01))
        except TimeoutError:
            return slots


async def test_staleness_zero_reserves_one_step_and_waits_for_its_update():
    buffer = make(groups_per_step=3, max_staleness=0, last_step=2)
    slots = await reserve_all(buffer)
    assert [slot.number for slot in slots] == [0, 1, 2]
    for slot in reversed(slots):
        buffer.put(slot, group_of(slot))
    taken = await buffer.take()
    assert [group.id for group in taken] == ["000000", "000001", "000002"]
    assert await reserve_all(buffer) == [], "no rollout may start from weights being updated"
    buffer.advance()
    assert [slot.number for slot in await reserve_all(buffer)] == [3, 4, 5]


async def test_a_ready_group_overtakes_a_straggler_until_its_deadline_comes():
    buffer = make(groups_per_step=1, max_staleness=1, last_step=3)
    straggler, quick = await reserve_all(buffer)
    buffer.put(quick, group_of(quick))
    assert [g.id for g in await buffer.take()] == ["000001"]
    buffer.advance()
    (third,) = await reserve_all(buffer)
    buffer.put(third, group_of(third))
    with pytest.raises(TimeoutError):  # the straggler is due now: nothing may overtake it any more
        await asyncio.wait_for(buffer.take(), 0.02)
    buffer.put(straggler, group_of(straggler))
    assert [g.id for g in await buffer.take()] == ["000000"]


async def test_no_slot_is_reserved_that_no_step_could_train():
    buffer = make(groups_per_step=2, max_staleness=5, last_step=2)
    assert len(await reserve_all(buffer)) == 4


async def test_a_dropped_group_is_replaced_by_a_new_slot_and_counted():
    buffer = make(groups_per_step=1, max_staleness=0, last_step=1)
    (slot,) = await reserve_all(buffer)
    buffer.put(slot, lost_group(slot))
    (replacement,) = await reserve_all(buffer)
    assert replacement.number == 1
    assert [group.id for group in buffer.lost] == ["000000"]


async def test_nothing_but_drops_stops_the_run_with_a_reason():
    buffer = make(groups_per_step=1, max_staleness=0, last_step=1)
    for _ in range(buffer_module.MAX_DROPS_IN_A_ROW - 1):
        slot = await buffer.reserve()
        buffer.put(slot, lost_group(slot))
    last = await buffer.reserve()
    with pytest.raises(InfraError, match="groups in a row"):
        buffer.put(last, lost_group(last))


@settings(deadline=None, max_examples=150)
@given(
    groups_per_step=st.integers(1, 4),
    max_staleness=st.integers(0, 4),
    last_step=st.integers(1, 8),
    choices=st.lists(st.integers(0, 10**6), min_size=1, max_size=200),
)
def test_any_finishing_order_keeps_the_bound_and_never_deadlocks(
    groups_per_step: int, max_staleness: int, last_step: int, choices: list[int]
):
    """An adversary picks, again and again, which running group finishes, or drops, next."""

    async def play() -> None:
        buffer = make(groups_per_step, max_staleness, last_step)
        running: dict[int, Slot] = {}
        reserved_at: dict[int, int] = {}
        trained: list[int] = []

        async def produce() -> None:
            while True:
                slot = await buffer.reserve()
                running[slot.number] = slot
                reserved_at[slot.number] = buffer.version

        producer = asyncio.create_task(produce())
        pick = 0
        for step in range(last_step):
            take = asyncio.create_task(buffer.take())
            while True:
                for _ in range(5):
                    await asyncio.sleep(0)
                if take.done():
                    break
                assert running, "the step waits although nothing is running: deadlock"
                choice = choices[pick % len(choices)]
                pick += 1
                slot = running.pop(sorted(running)[choice % len(running)])
                if choice % 7 == 3 and pick % 2:
                    buffer.put(slot, lost_group(slot))
                else:
                    buffer.put(slot, group_of(slot))
            numbers = [int(group.id) for group in take.result()]
            assert len(numbers) == groups_per_step
            assert all(step - reserved_at[number] <= max_staleness for number in numbers)
            trained += numbers
            buffer.advance()
        producer.cancel()
        assert len(set(trained)) == len(trained), "a group was trained twice"

    asyncio.run(play())
