"""One HTTP exchange, below the framework: read the body, answer in JSON or events, notice leaving.

The one thing to know: a status can only be sent once, so an event stream begins with its first
event. What goes wrong before that is an ordinary error; afterwards it is an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

import msgspec
from starlette.types import Receive, Scope, Send

from practicum.endpoint.refusals import Refusal
from practicum.endpoint.streaming import Json

BODY_TIMEOUT_S = 30.0


class ClientLeft(Exception):
    """The client closed the connection; nobody waits for the answer."""


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises Refusal if it is too long or too slow, ClientLeft if it stops."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if int(declared) > max_bytes:
        raise _too_long(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise _too_long(max_bytes)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refusal(f"the body took longer than {BODY_TIMEOUT_S:g} s", status=408) from None


def _too_long(max_bytes: int) -> Refusal:
    message = f"the body is longer than {max_bytes} bytes; send less, or start the server with more"
    return Refusal(message, status=413, code="body_too_long")


async def while_connected(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work; it is cancelled, and ClientLeft raised, as soon as the client leaves."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watcher = asyncio.ensure_future(watch())
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait((watcher, working), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        working.result()
    finally:
        watcher.cancel()
        working.cancel()
        await asyncio.gather(watcher, working, return_exceptions=True)


@dataclass(slots=True)
class Reply:
    """What is sent back, and how far that has come."""

    send: Send
    status: int | None = None
    """None until something was sent."""
    ended: bool = False

    async def json(
        self, body: Json, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        await self._start("application/json", status, headers or {})
        await self._send(msgspec.json.encode(body), last=True)

    async def event(self, body: Json) -> None:
        if self.status is None:
            await self._start("text/event-stream", 200, {"cache-control": "no-cache"})
        await self._send(b"data: " + msgspec.json.encode(body) + b"\n\n")

    async def done(self) -> None:
        await self._send(b"data: [DONE]\n\n", last=True)

    async def refuse(self, refusal: Refusal) -> None:
        """An error, in whichever way is still open."""
        if self.ended:
            return
        if self.status is None:
            headers = {"x-should-retry": "true" if refusal.worth_retrying else "false"}
            await self.json(refusal.body, refusal.status, headers)
        else:
            await self.event(refusal.body)
            await self.done()

    async def _start(self, content_type: str, status: int, headers: dict[str, str]) -> None:
        self.status = status
        named = {"content-type": content_type, "x-content-type-options": "nosniff", **headers}
        raw = [(name.encode(), value.encode()) for name, value in named.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def _send(self, body: bytes, *, last: bool = False) -> None:
        self.ended = last
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})
