"""The host's side of one sandbox: talks to its PID 1, keeps the time, and makes sure of its end.

Blocking; `local.py` puts it behind `async`. Nothing that comes back is trusted: replies are bounded
and checked, and a PID 1 that does not answer in time loses its sandbox.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from practicum.environment.sandbox.launch import NotPossible, Zygote
from practicum.environment.sandbox.outcome import Report, make_result, parse_report
from practicum.environment.sandbox.pump import Pump
from practicum.environment.sandbox.threads import Cancel
from practicum.environment.sandbox.zygote import wire
from practicum.environment.sandbox.zygote.order import Order
from practicum.errors import SandboxError
from practicum.protocols import ExecResult

ANSWER_TIMEOUT_S = 10.0
"""For what PID 1 does without running a command: opening a file, killing, saying ready."""
CLOSE_TIMEOUT_S = 10.0
TURN_POLL_S = 0.02


class Connection:
    """A live sandbox, seen from outside."""

    def __init__(self, zygote: Zygote, order: Order, *, lifetime_s: float) -> None:
        """Make the sandbox. Raises NotPossible if a step of that fails, SandboxError if it dies."""
        self._zygote = zygote
        self._name = order.name
        self._turn = threading.Lock()
        self._lost: str | None = None
        self._is_closed = False
        self._ends_at = time.monotonic() + lifetime_s
        self._lifetime_s = lifetime_s
        try:
            self._control, self._lifeline = zygote.order(order)
        except OSError as error:
            raise SandboxError(f"the sandbox helper process is gone ({error.strerror})") from None
        self._control.settimeout(ANSWER_TIMEOUT_S)
        try:
            answer, _ = self._receive()
        except SandboxError:
            self.close()
            raise
        if "failed" in answer:
            self.close()
            raise NotPossible(str(answer["failed"]), int(answer["errno"]))

    def run(
        self,
        cancel: Cancel,
        *,
        argv: Sequence[str],
        stdin: bytes,
        env: Mapping[str, str],
        cwd: str,
        timeout_s: float,
        max_output: int,
    ) -> ExecResult:
        """Run a command to its end, or to that of its time, or until cancelled."""
        with self._my_turn(cancel):
            started = time.monotonic()
            deadline = min(started + timeout_s, self._ends_at)
            pump = Pump(stdin, max_output)
            try:
                request = {"argv": argv, "env": env, "cwd": cwd, "timeout_s": timeout_s}
                self._send({"do": "run", **request}, pump.far_ends)
                pump.close_far_ends()
                report, timed_out = self._attend(pump, deadline, cancel)
                pump.drain(time.monotonic() + ANSWER_TIMEOUT_S)
            finally:
                pump.close()
            wall_s = time.monotonic() - started
            return make_result(report, pump, timed_out=timed_out, wall_s=wall_s)

    def read(self, path: str, max_bytes: int, cancel: Cancel) -> bytes:
        """The start of a regular file. Raises FileNotFoundError if it cannot be read as one."""
        with self._my_turn(cancel):
            fd, code = self._open_inside("read", path)
            if fd is None:
                raise FileNotFoundError(code, os.strerror(code), path)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise FileNotFoundError(errno.ENOENT, "Not a regular file", path)
                return _read_up_to(fd, max_bytes)
            finally:
                os.close(fd)

    def write(self, path: str, content: bytes, cancel: Cancel) -> None:
        """Create or replace a file. Raises OSError for what stands in the way."""
        with self._my_turn(cancel):
            fd, code = self._open_inside("write", path)
            if fd is None:
                raise OSError(code, os.strerror(code), path)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "Not a regular file", path)
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            finally:
                os.close(fd)

    def close(self) -> None:
        """Kill everything in the sandbox; returns when nothing of it is left. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        # If the zygote is gone, the kernel has taken every sandbox with it.
        with suppress(OSError):
            self._zygote.kill(self._name)
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        is_gone = bool(poll.poll(CLOSE_TIMEOUT_S * 1000))
        # Whoever is in the middle of a command sees the end of its socket and leaves.
        with self._turn:
            self._lost = self._lost or "it is closed"
            self._control.close()
            os.close(self._lifeline)
        if not is_gone:
            raise SandboxError(f"sandbox {self._name} did not end within {CLOSE_TIMEOUT_S} s")

    def _attend(self, pump: Pump, deadline: float, cancel: Cancel) -> tuple[Report | None, bool]:
        """Wait for the report of a running command, killing it when its time has come."""
        control = self._control.fileno()
        ready = pump.run_until([control, cancel.fd], deadline)
        timed_out = ready is None
        try:
            if ready != control:
                self._send({"do": "kill"})
                if pump.run_until([control], time.monotonic() + ANSWER_TIMEOUT_S) is None:
                    raise SandboxError("it did not kill a command when told to")
            message, _ = self._receive()
            return parse_report(message), timed_out
        except (SandboxError, wire.WireError) as error:
            self._lose(str(error))
            return None, timed_out

    def _open_inside(self, what: str, path: str) -> tuple[int | None, int]:
        """A descriptor of a file, or why there is none."""
        self._send({"do": what, "path": path})
        answer, fds = self._receive(max_fds=1)
        code = answer.get("errno")
        if type(code) is not int or (code == 0) != bool(fds):
            for fd in fds:
                os.close(fd)
            self._lose("it answered a file request with nonsense")
            raise SandboxError(f"sandbox {self._name} is lost: {self._lost}")
        return (fds[0] if fds else None), code

    @contextmanager
    def _my_turn(self, cancel: Cancel) -> Generator[None]:
        """One thing at a time; whoever is cancelled stops waiting for their turn."""
        while not self._turn.acquire(timeout=TURN_POLL_S):
            if cancel.is_set:
                raise SandboxError("cancelled while waiting for the sandbox")
        try:
            self._check_alive()
            yield
        finally:
            self._turn.release()

    def _check_alive(self) -> None:
        if self._lost is None and time.monotonic() >= self._ends_at:
            self._lose(f"its {self._lifetime_s:g} s of life are over")
        if self._lost is not None:
            raise SandboxError(f"sandbox {self._name} is lost: {self._lost}")

    def _lose(self, why: str) -> None:
        self._lost = why
        with suppress(OSError):
            self._zygote.kill(self._name)

    def _send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        try:
            wire.send(self._control, message, fds)
        except OSError as error:
            self._lose(f"its PID 1 does not listen ({error})")
            raise SandboxError(f"sandbox {self._name} is lost: {self._lost}") from None

    def _receive(self, max_fds: int = 0) -> tuple[dict[str, Any], list[int]]:
        try:
            return wire.receive(self._control, max_bytes=wire.MAX_REPLY, max_fds=max_fds)
        except (EOFError, OSError, wire.WireError) as error:
            self._lose(f"its PID 1 is gone or talks nonsense ({error})")
            raise SandboxError(f"sandbox {self._name} is lost: {self._lost}") from None


def _read_up_to(fd: int, max_bytes: int) -> bytes:
    content = bytearray()
    while len(content) < max_bytes:
        chunk = os.read(fd, min(1 << 20, max_bytes - len(content)))
        if not chunk:
            break
        content += chunk
    return bytes(content)
