"""From an application to a listening server, and to an orderly end.

A server binds to this machine alone unless it has a key. Asked to stop, it accepts nothing more,
lets what is under way finish within a grace time, and tells the rest that it is shutting down.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from practicum.errors import UsageError

BACKLOG = 1024
KEEP_ALIVE_S = 30


def bind(host: str, port: int, *, has_key: bool) -> socket.socket:
    """A listening socket. Raises UsageError if others could reach it and there is no key."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, OverflowError) as error:
        raise UsageError(f"cannot bind to {host!r}, port {port}: {error}") from None
    family, _, _, _, address = found[0]
    if not has_key and not ipaddress.ip_address(address[0]).is_loopback:
        raise UsageError(
            f"bound to {host}, anyone who reaches this machine could use the model: give a key "
            "(PRACTICUM_API_KEY or --api-key), or bind to 127.0.0.1"
        )
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        raise UsageError(
            f"cannot bind to {host}, port {port}: {reason}; choose another port, or 0 for any"
        ) from None
    return listening


def address_of(listening: socket.socket) -> str:
    """Where to reach it, such as `http://127.0.0.1:8000`."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    app: ASGIApp,
    listening: socket.socket,
    *,
    grace_s: float,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; a second Ctrl-C does not wait for anyone."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # we report ourselves
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(0, round(grace_s)),
        backlog=BACKLOG,
    )
    server = uvicorn.Server(config)

    async def stop_when_asked() -> None:
        if stop is not None:
            await stop.wait()
            server.should_exit = True

    asked = asyncio.create_task(stop_when_asked())
    try:
        with _signals_are_ours():
            await server.serve(sockets=[listening])
    finally:
        asked.cancel()


def _pass(*_: object) -> None:
    """Nothing is left to do."""


@contextmanager
def _signals_are_ours() -> Generator[None]:
    """uvicorn repeats the signal that ended it; that would kill us before we have closed up."""
    if threading.current_thread() is not threading.main_thread():  # no signals here
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, _pass) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
