"""Looks at the processes of this machine, as the tests see them from outside of a sandbox."""

import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 10.0


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another process does. Fails if it does not come."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def with_argument(marker: str) -> list[int]:
    """Processes, zombies left out, that have `marker` among the words of their command line."""
    return [pid for pid in _all() if marker in _read(pid, "cmdline").split("\0")]


def children_of(parent: int) -> list[int]:
    return [pid for pid in _all() if _parent(pid) == parent]


def is_running(pid: int) -> bool:
    fields = _read(pid, "stat").rpartition(") ")[2].split()
    return bool(fields) and fields[0] not in "ZX"


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(") ")[2].split()
    return int(fields[1]) if fields else 0


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
