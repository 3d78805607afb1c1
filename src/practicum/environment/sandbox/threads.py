"""Blocking work behind `async` methods, on no event loop in particular, with real cancellation.

A cancelled caller tells the work to stop and waits until it has: when CancelledError comes out,
nothing is running any more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class Cancel:
    """A flag that a blocked poll can see: `fd` becomes readable when it is set."""

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe()
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        os.write(self._writer, b"!")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self.fd)
        os.close(self._writer)


async def in_thread(threads: Executor, work: Callable[[Cancel], T]) -> T:
    """Run `work` in a thread. If the caller is cancelled, set its `Cancel` and wait for its end."""
    with Cancel() as cancel:
        future = asyncio.wrap_future(threads.submit(work, cancel))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            cancel.set()
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            # Looked at, so that asyncio does not report it as never retrieved.
            future.exception()
            raise
