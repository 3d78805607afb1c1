"""Many attempts at once, as one awaitable whose failure leaves none of them running.

The one thing to know: all start in the same turn of the event loop, since an engine forms its
batches of the calls that arrive together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def side_by_side(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results in order. The first error cancels the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:  # one cause is enough; the rest was cancelled for it
        raise errors.exceptions[0] from None
    return [task.result() for task in running]
