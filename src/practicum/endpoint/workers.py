"""Threads for work that may never end, such as a stranger's chat template.

The one thing to know: nobody waits for them at the end. A pool's threads are joined when the event
loop or the interpreter closes, and one that is stuck would keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

NAME = "practicum-request"
NUM_WORKERS = min(32, (os.cpu_count() or 1) + 4)


class Workers:
    """At most `num` threads at a time; who comes later waits."""

    def __init__(self, num: int = NUM_WORKERS) -> None:
        self._free = asyncio.Semaphore(num)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do the work in a thread. Being cancelled leaves it to itself.

        Whatever it raises comes out here: what a coroutine may not raise or a server not catch
        (StopIteration, panics of Rust code) as a RuntimeError.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Callable[[], Result]] = loop.create_future()

        def finish(outcome: Callable[[], Result]) -> None:
            self._free.release()  # only now: a thread whose client left takes part all the same
            if not done.done():
                done.set_result(outcome)

        def live() -> None:
            outcome = _outcome(work)
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(finish, outcome)

        try:
            threading.Thread(target=live, name=NAME, daemon=True).start()
        except RuntimeError:  # the system has no more threads
            self._free.release()
            raise
        return (await done)()


def any_busy() -> bool:
    """Whether any such thread of this process is still at work."""
    return any(thread.name == NAME for thread in threading.enumerate())


def _outcome(work: Callable[[], Result]) -> Callable[[], Result]:
    """Returns or raises what the work did."""
    try:
        result = work()
    except BaseException as error:
        failure: Exception
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            failure = error
        else:
            failure = RuntimeError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error

        def fail() -> Result:
            raise failure

        return fail
    return lambda: result
