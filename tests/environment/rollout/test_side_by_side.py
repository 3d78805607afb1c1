"""Attempts side by side: together at the start, in order at the end, none left behind."""

import asyncio

import pytest

from practicum.environment.rollout.side_by_side import side_by_side
from practicum.errors import PolicyDead, UsageError


async def test_results_come_in_the_order_of_the_work_not_of_its_end() -> None:
    async def work(number: int) -> int:
        for _ in range(10 - number):
            await asyncio.sleep(0)
        return number

    assert await side_by_side(work(number) for number in range(10)) == list(range(10))


async def test_all_work_starts_in_one_turn_of_the_event_loop() -> None:
    turn, started = 0, list[int]()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def work() -> None:
        started.append(turn)

    counting = asyncio.create_task(count_turns())
    await side_by_side(work() for _ in range(100))
    counting.cancel()
    assert len(started) == 100
    assert len(set(started)) == 1


@pytest.mark.parametrize("error", [PolicyDead("gone"), UsageError("no"), KeyError("a bug")])
async def test_the_first_error_is_raised_as_itself_and_ends_all_others(error: Exception) -> None:
    ended = 0

    async def hang() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    before = asyncio.all_tasks()
    with pytest.raises(type(error)) as raised:
        await side_by_side([hang(), fail(), hang()])
    assert raised.value is error
    assert ended == 2
    assert asyncio.all_tasks() == before


async def test_cancelling_the_caller_cancels_the_work() -> None:
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    running = asyncio.create_task(side_by_side([hang(), hang()]))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before
