"""One command inside a sandbox: the child that becomes it, and what PID 1 learns from its end."""

from __future__ import annotations

import math
import mmap
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from .cgroups import SandboxCgroup

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes by which shells, and we, say that a command could not be started."""
MAX_OPEN_FILES = 1024


class Command(NamedTuple):
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    timeout_s: float


class Bounds(NamedTuple):
    """Limits by rlimit: the second line of defence, or the only one where there are no cgroups."""

    max_processes: int
    cpus: float
    address_space: int | None
    """Bytes; only without a memory cgroup, because it breaks programs that reserve much."""


def become(
    command: Command, fds: Sequence[int], group: SandboxCgroup, bounds: Bounds, started: mmap.mmap
) -> NoReturn:
    """In a forked child: turn into the command. What is its own fault goes to its stderr."""
    try:
        for join in group.joins:
            os.write(join, b"0")
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        _set_rlimits(command, bounds)
        # From here on failures are the command's; before, they are ours and PID 1 says so.
        started[0] = 1
        os.chdir(command.cwd)
        os.execvpe(command.argv[0], list(command.argv), dict(command.env))
    except FileNotFoundError as error:
        _fail(command, error.strerror or "", NOT_FOUND)
    except (OSError, ValueError) as error:
        _fail(command, getattr(error, "strerror", None) or str(error), NOT_EXECUTABLE)
    finally:
        os._exit(NOT_EXECUTABLE)


def _fail(command: Command, why: str, code: int) -> NoReturn:
    text = f"sandbox: cannot run {command.argv[0]!r} in {command.cwd!r}: {why}\n"
    os.write(2, text.encode(errors="backslashreplace")[:4096])
    os._exit(code)


def _set_rlimits(command: Command, bounds: Bounds) -> None:
    # Time is the host's to keep; this ends a loop whose host has stopped looking.
    cpu_s = math.ceil(command.timeout_s * max(1.0, bounds.cpus)) + 1
    wanted = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_NPROC: bounds.max_processes,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if bounds.address_space is not None:
        wanted[resource.RLIMIT_AS] = bounds.address_space
    for limit, value in wanted.items():
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


class Reaped(NamedTuple):
    """What the kernel says of the processes that ended."""

    status: int | None
    """Wait status of the command itself, once it is among them."""
    cpu_s: float
    peak_bytes: int


def reap(pid: int, so_far: Reaped, *, block: bool = False) -> Reaped:
    """Collect the children that have ended; with `block`, all that there are."""
    status, cpu_s, peak_bytes = so_far
    while True:
        try:
            ended, code, usage = os.wait4(-1, 0 if block else os.WNOHANG)
        except ChildProcessError:
            break
        if ended == 0:
            break
        cpu_s += usage.ru_utime + usage.ru_stime
        peak_bytes = max(peak_bytes, usage.ru_maxrss * 1024)
        if ended == pid:
            status = code
    return Reaped(status, cpu_s, peak_bytes)


def kill_all() -> None:
    """Kill every process of this PID namespace but its PID 1, which calls this.

    The kernel does it in one go: what is forking at that moment fails to fork.
    """
    assert os.getpid() == 1, "only within a PID namespace"
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return
