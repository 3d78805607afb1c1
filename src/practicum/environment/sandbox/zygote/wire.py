"""Messages between the host and its helpers: a length, a bounded JSON object, file descriptors.

What arrives from a sandbox is data of hostile origin: a message that is too long, malformed or
carries more descriptors than expected raises `WireError`, and never anything else.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

HEADER = struct.Struct("!I")
MAX_REQUEST = 8 << 20
"""Bytes of a message from the host, which carries a command line and its environment."""
MAX_REPLY = 64 << 10
"""Bytes of a message to the host."""


class WireError(Exception):
    """The other side sent something that is not a message."""


def send(sock: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Write one message. Raises OSError if the other side is gone."""
    body = json.dumps(message).encode()
    assert len(body) <= MAX_REQUEST, f"a message of {len(body)} bytes"
    data = memoryview(HEADER.pack(len(body)) + body)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
    sock.sendall(data[sent:], socket.MSG_NOSIGNAL)


def receive(
    sock: socket.socket, *, max_bytes: int, max_fds: int = 0
) -> tuple[dict[str, Any], list[int]]:
    """Read one message and the descriptors that came with it, which the caller then owns.

    Raises EOFError when the other side is gone, WireError when it talks nonsense.
    """
    fds: list[int] = []
    try:
        (length,) = HEADER.unpack(_read(sock, HEADER.size, max_fds, fds))
        if length > max_bytes:
            raise WireError(f"a message of {length} bytes, more than {max_bytes}")
        return _decode(_read(sock, length, 0, fds)), fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _read(sock: socket.socket, num_bytes: int, max_fds: int, fds: list[int]) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        try:
            chunk, ancillary, flags, _ = sock.recvmsg(
                num_bytes - len(data),
                # CMSG_LEN, not CMSG_SPACE: its padding would have room for one more descriptor.
                socket.CMSG_LEN(max_fds * array.array("i").itemsize) if max_fds else 0,
                socket.MSG_CMSG_CLOEXEC,
            )
        except ConnectionError:
            raise EOFError("the other side is gone") from None
        except TimeoutError:
            raise WireError("half a message, then silence") from None
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                fds.extend(received)
        if flags & socket.MSG_CTRUNC:
            raise WireError("more file descriptors than expected")
        if not chunk:
            raise EOFError("the other side is gone")
        data += chunk
    return bytes(data)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise WireError("a message that is not JSON") from None
    if not isinstance(message, dict):
        raise WireError("a message that is not a JSON object")
    return message  # pyright: ignore[reportUnknownVariableType]
