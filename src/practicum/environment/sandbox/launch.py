"""The host's side of the zygote: starts it, orders sandboxes from it, and ends it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from practicum.environment.sandbox.zygote import seccomp, wire
from practicum.environment.sandbox.zygote.order import Order

START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
# -I and -S: nothing of the user's environment or site-packages runs in the zygote. Its folder comes
# last on the path, so that the standard library always wins.
_BOOT = """
import sys
sys.path.append(sys.argv[1])
from zygote.server import main
main(int(sys.argv[2]))
"""


class NotPossible(Exception):
    """This machine does not let us make sandboxes. `step` failed with `errno` (0: see `step`)."""

    def __init__(self, step: str, errno: int = 0) -> None:
        super().__init__(f"{step}: {os.strerror(errno)}" if errno else step)
        self.step: Final = step
        self.errno: Final = errno


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the zygote says about this machine when it is ready."""

    cgroup_version: Literal[0, 1, 2]
    controllers: tuple[str, ...]
    reasons: Mapping[str, str]
    """Controller -> why it is missing."""
    as_root: bool


class Zygote:
    """A running zygote. Usable from several threads."""

    def __init__(self) -> None:
        """Start it. Raises NotPossible if this machine has no namespaces for us."""
        if sys.platform != "linux":
            raise NotPossible(f"{sys.platform} has no namespaces")
        machine = os.uname().machine
        if machine not in seccomp.AUDIT_ARCH:
            raise NotPossible(f"no system-call table for {machine} processors")
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).parent)]
                + [str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"LANG": "C.UTF-8"},
                # A Ctrl-C in the terminal is for the trainer, which ends us in its own time.
                start_new_session=True,
            )
        try:
            self.welcome: Final = self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> Welcome:
        self._control.settimeout(START_TIMEOUT_S)
        prefix = str(Path(sys.base_prefix).resolve())
        try:
            wire.send(self._control, {"host_pid": os.getpid(), "prefix": prefix})
            answer, _ = wire.receive(self._control, max_bytes=wire.MAX_REPLY)
        except (OSError, EOFError, wire.WireError) as error:
            raise NotPossible(f"the helper process did not start ({error})") from None
        if "failed" in answer:
            raise NotPossible(answer["failed"], answer["errno"])
        return Welcome(
            cgroup_version=answer["cgroup_version"],
            controllers=tuple(answer["controllers"]),
            reasons=answer["reasons"],
            as_root=answer["as_root"],
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def order(self, order: Order) -> tuple[socket.socket, int]:
        """Ask for a sandbox: a socket to its PID 1, which says `ready` or what failed, and a
        descriptor that ends when nothing of the sandbox is left. Raises OSError if we are gone."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        lifeline, held = os.pipe()
        try:
            self._tell({"do": "create", **order._asdict()}, [theirs.fileno(), held])
        except BaseException:
            ours.close()
            os.close(lifeline)
            raise
        finally:
            theirs.close()
            os.close(held)
        return ours, lifeline

    def kill(self, name: str) -> None:
        """End a sandbox, whatever it is doing. Raises OSError if we are gone."""
        self._tell({"do": "kill", "name": name}, [])

    def _tell(self, message: dict[str, Any], fds: list[int]) -> None:
        with self._lock:
            wire.send(self._control, message, fds)

    def close(self) -> None:
        """End the zygote, and with it every sandbox. Returns when nothing is left. Idempotent."""
        with self._lock, suppress(OSError):
            # Not only closed: a process that the host forked may hold a copy of it.
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
