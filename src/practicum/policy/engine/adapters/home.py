"""An event loop on a thread of its own, for engines that belong to one loop.

Rollouts come from whatever loop the caller runs, the trainer from a thread without one; what must
not change loops lives here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from practicum.errors import PolicyDead

Result = TypeVar("Result")


class Home:
    """Runs coroutines for callers of any thread or loop, until it is closed.

    Example:
        home = Home()
        policy = home.run(VllmServer.connect(url, tokens))
        completion = await home.call(policy.generate(prompt_ids, sampling))
        home.close()
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="engine-home", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Its result. Blocks: not to be called from a coroutine that runs here."""
        assert threading.current_thread() is not self._thread, "it would wait for itself"
        future = self._submit(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()  # of an interrupted wait

    async def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Its result; cancelling the call cancels the coroutine."""
        return await asyncio.wrap_future(self._submit(coroutine))

    def close(self) -> None:
        """Cancel what still runs and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        if self._loop.is_closed():
            coroutine.close()
            raise PolicyDead("the engine was closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # it cancels what is left
            runner.get_loop().run_forever()
