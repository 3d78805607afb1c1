"""One owner per run. The kernel frees the lock when its process ends, however it ends.

The file stays and names its last owner, for the message; a dead owner's name keeps nobody out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import weakref
from pathlib import Path

from practicum.errors import UsageError
from practicum.observe.files import disk_error


class Lock:
    """Held from construction to `release`. Raises UsageError if another process holds it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        self._owner_pid = -1
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise disk_error(path, error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(self._descriptor)
            self.release()
            raise UsageError(
                f"{folder} belongs to {owner}; two processes must not write one run. "
                "Wait for it, stop it, or choose another `name`"
            ) from None
        self._owner_pid = os.getpid()
        os.truncate(self._descriptor, 0)
        facts = {"pid": self._owner_pid, "host": platform.node()}
        os.pwrite(self._descriptor, json.dumps(facts).encode(), 0)
        _HELD.add(self)

    def release(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            if self._owner_pid == os.getpid():
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1
        _HELD.discard(self)


# A forked child shares the descriptor, and would keep the lock alive after its parent's death.
_HELD: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)


def _owner(descriptor: int) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError):
        facts = json.loads(os.pread(descriptor, 1000, 0))
        return f"the running process {int(facts['pid'])} on {facts['host']}"
    return "another running process"
