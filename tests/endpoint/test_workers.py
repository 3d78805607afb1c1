"""Work in threads that nobody waits for."""

import asyncio
import threading

import pytest

from practicum.endpoint.workers import Workers, any_busy


async def test_what_the_work_returns_or_raises_comes_out():
    workers = Workers(1)
    assert await workers.run(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0)
    assert await workers.run(lambda: 6) == 6


class Panic(BaseException):
    """As Rust code raises it."""


@pytest.mark.parametrize("kind", [StopIteration, Panic, SystemExit, asyncio.CancelledError])
async def test_what_no_coroutine_may_raise_is_a_runtime_error(kind: type[BaseException]):
    def fail() -> None:
        raise kind("why")

    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: why"):
            await Workers().run(fail)


async def test_a_thread_whose_caller_left_keeps_its_place():
    workers, release = Workers(1), threading.Event()
    stuck = asyncio.create_task(workers.run(release.wait))
    await asyncio.sleep(0.05)
    stuck.cancel()
    later = asyncio.create_task(workers.run(lambda: 7))
    await asyncio.sleep(0.05)
    assert stuck.cancelled()
    assert any_busy()
    assert not later.done()
    release.set()
    assert await asyncio.wait_for(later, 10) == 7
