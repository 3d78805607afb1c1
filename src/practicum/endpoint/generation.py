"""Runs the completions of one request side by side and reports what each adds, as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from practicum.endpoint.metrics import Metrics
from practicum.endpoint.replies import Ask
from practicum.endpoint.streaming import Delta, deltas
from practicum.protocols import Policy

Take = Callable[[int, Delta], Awaitable[None]]
"""Index of the completion, and what was added to it."""


async def generate(policy: Policy, asks: Sequence[Ask], metrics: Metrics, take: Take) -> None:
    """Sample all completions. The first error ends them all; so does being cancelled.

    A reader that is slower than the engine does not hold it up: what piles up meanwhile is taken
    in one piece.
    """
    queue: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()

    async def pump(index: int, ask: Ask) -> None:
        ended = False
        with metrics.completion() as see:
            async with aclosing(deltas(policy, ask.prompt_ids, ask.sampling)) as stream:
                async for delta in stream:
                    see(delta)
                    queue.put_nowait((index, delta))
                    ended = delta.stop_reason is not None
        assert ended, "a stream of deltas ended without a stop reason"

    try:
        async with asyncio.TaskGroup() as group:
            for index, ask in enumerate(asks):
                group.create_task(pump(index, ask))
            num_live = len(asks)
            while num_live:
                for index, delta in await _waiting(queue):
                    num_live -= delta.stop_reason is not None
                    await take(index, delta)
    except* Exception as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


async def _waiting(queue: asyncio.Queue[tuple[int, Delta]]) -> list[tuple[int, Delta]]:
    """All that is there, at least one, in order of first arrival and joined by completion."""
    found: dict[int, list[Delta]] = {}
    index, delta = await queue.get()
    found[index] = [delta]
    while not queue.empty():
        index, delta = queue.get_nowait()
        found.setdefault(index, []).append(delta)
    return [(index, Delta.joined(deltas)) for index, deltas in found.items()]
