"""Moves the bytes of one command: input in, output out, never holding more than the cap.

The command gets the far ends of pipes; nothing inside a sandbox sees or carries what flows in them.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Sequence

CHUNK = 1 << 16


class Capture:
    """The first `limit` bytes of a stream, and the count of all of them."""

    def __init__(self, limit: int) -> None:
        self.head = bytearray()
        self.num_bytes = 0
        self._limit = limit

    def add(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        self.head += chunk[: max(0, self._limit - len(self.head))]

    @property
    def is_truncated(self) -> bool:
        return self.num_bytes > len(self.head)


class Pump:
    """The near ends of a command's three streams."""

    def __init__(self, stdin: bytes, max_output: int) -> None:
        self.stdout, self.stderr = Capture(max_output), Capture(max_output)
        self._to_write = memoryview(stdin)
        self._far: list[int] = []
        self._poll = select.poll()
        self._captures: dict[int, Capture] = {}
        self._stdin: int | None = None
        self._open_stdin()
        for capture in (self.stdout, self.stderr):
            near, far = os.pipe()
            self._far.append(far)
            self._captures[near] = capture
            self._poll.register(near, select.POLLIN)

    def _open_stdin(self) -> None:
        if not self._to_write:
            self._far.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            return
        far, self._stdin = os.pipe()
        os.set_blocking(self._stdin, False)
        self._far.append(far)
        self._poll.register(self._stdin, select.POLLOUT)

    @property
    def far_ends(self) -> Sequence[int]:
        """The command's descriptors 0, 1 and 2."""
        return tuple(self._far)

    def close_far_ends(self) -> None:
        """To be called once the command has them, or its output never ends."""
        while self._far:
            os.close(self._far.pop())

    def run_until(self, signals: Iterable[int], deadline: float) -> int | None:
        """Move bytes until one of `signals` is readable (returned), or the deadline has come."""
        signals = list(signals)
        for fd in signals:
            self._poll.register(fd, select.POLLIN)
        try:
            while True:
                ready = self._step(deadline)
                if ready is None:
                    return None
                for fd in signals:
                    if fd in ready:
                        return fd
        finally:
            for fd in signals:
                self._poll.unregister(fd)

    def drain(self, deadline: float) -> None:
        """Take the rest of the output: until every holder of the pipes is gone, or the deadline."""
        self._close_stdin()
        while self._captures and self._step(deadline) is not None:
            continue

    def close(self) -> None:
        self.close_far_ends()
        self._close_stdin()
        for fd in list(self._captures):
            self._close_output(fd)

    def _step(self, deadline: float) -> list[int] | None:
        """One round of poll: the other descriptors that were ready, or None when time is up."""
        remaining_ms = (deadline - time.monotonic()) * 1000
        if remaining_ms <= 0:
            return None
        others: list[int] = []
        for fd, _ in self._poll.poll(remaining_ms):
            if fd == self._stdin:
                self._write_some(fd)
            elif fd in self._captures:
                self._read_some(fd)
            else:
                others.append(fd)
        return others

    def _read_some(self, fd: int) -> None:
        chunk = os.read(fd, CHUNK)
        if chunk:
            self._captures[fd].add(chunk)
        else:
            self._close_output(fd)

    def _write_some(self, fd: int) -> None:
        try:
            written = os.write(fd, self._to_write[:CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:
            written = len(self._to_write)
        self._to_write = self._to_write[written:]
        if not self._to_write:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._poll.unregister(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    def _close_output(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._captures[fd]
        os.close(fd)
