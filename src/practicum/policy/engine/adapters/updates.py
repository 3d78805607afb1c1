"""New weights for an engine elsewhere: pause, load, label, resume, and nothing in between.

The one thing to know: from `pause` to `resume` no token is sampled, and requests that arrive wait
here instead of in the engine, so each request belongs to one version of the prefix cache. Requests
under way go on afterwards; the engine labels every token with the version that sampled it.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from typing import Protocol

from practicum.errors import InfraError, PolicyDead, UsageError
from practicum.types import WeightVersion


class Controls(Protocol):
    """How one kind of engine is told what to do around an update."""

    async def pause(self) -> None:
        """Stop sampling and keep the requests under way."""
        ...

    async def label(self, version: int) -> None:
        """Tokens sampled from now on carry this version."""
        ...

    async def resume(self) -> None: ...

    async def give_up(self) -> None:
        """End all requests: the weights are neither the old ones nor the new ones."""
        ...


class Weights:
    """Which version an engine runs, and the door that is closed while it changes."""

    def __init__(self, name: str, version: int) -> None:
        self.version = WeightVersion(version)
        self.cache_key = uuid.uuid4().hex
        """What an engine shares keys and values by: no other weights have it, of whatever run."""
        self._name = name
        self._change: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None

    async def enter(self) -> WeightVersion:
        """Wait for an update to end; the version that a request is now sent to."""
        while self._change is not None:
            await asyncio.shield(self._change)
        if self._failure is not None:
            raise PolicyDead(
                f"{self._name} failed while its weights were updated, so that nobody knows what "
                f"they are; start it again ({self._failure})"
            ) from self._failure
        return self.version

    @contextlib.asynccontextmanager
    async def changing(self, version: int, controls: Controls) -> AsyncGenerator[None]:
        """Load the new weights in the body; any way of transport will do."""
        if self._change is not None:
            raise UsageError(f"the weights of {self._name} are being updated already")
        await self.enter()
        change = self._change = asyncio.get_running_loop().create_future()
        try:
            await controls.pause()  # if this fails, nothing has happened yet
            try:
                yield
                await controls.label(version)
                self.version = WeightVersion(version)
                self.cache_key = uuid.uuid4().hex
                await controls.resume()
            except BaseException as error:
                self._failure = error
                with contextlib.suppress(InfraError, UsageError):
                    await controls.give_up()
                if isinstance(error, Exception):
                    raise PolicyDead(
                        f"{self._name} could not be updated to version {version}: {error}"
                    ) from error
                raise
        finally:
            self._change = None
            change.set_result(None)
