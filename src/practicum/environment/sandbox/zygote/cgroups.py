"""Control groups: the hard limits on memory, processes and CPU of one sandbox's commands.

A pool owns one folder per hierarchy, named after the process that will remove it, and each sandbox
a child there. Only commands are moved in, never the sandbox's own PID 1, so that running out of
memory ends the command and not the sandbox.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from .cgroup_places import CONTROLLERS, find_places, read
from .order import Order

CPU_PERIOD_US = 100_000
PREFIX = "practicum-"


class Folder(NamedTuple):
    """A pool's folder in one hierarchy, and the controllers that its children have."""

    controllers: tuple[str, ...]
    path: str
    fd: int


class PoolCgroup(NamedTuple):
    version: int
    """1 or 2; 0 if no limit can be set this way."""
    folders: tuple[Folder, ...]
    reasons: dict[str, str]
    """Controller -> why it cannot be used."""

    @property
    def controllers(self) -> list[str]:
        return [name for folder in self.folders for name in folder.controllers]


class SandboxCgroup(NamedTuple):
    """Open files of one sandbox's group: all of it that the sandbox's PID 1 gets to keep."""

    joins: tuple[int, ...]
    """Who writes `0` into each of them is moved in."""
    memory_events: int | None
    pids_events: int | None
    peak: int | None

    @property
    def descriptors(self) -> list[int]:
        counters = (self.memory_events, self.pids_events, self.peak)
        return [*self.joins, *(fd for fd in counters if fd is not None)]


def open_pool() -> PoolCgroup:
    """Make the folders of a pool that this process keeps, and clear away those of dead keepers."""
    version, places = find_places()
    folders: list[Folder] = []
    reasons = dict.fromkeys(CONTROLLERS, "no control group that we may divide is mounted")
    for controllers, parent in places:
        path = f"{parent}/{PREFIX}{_identity(os.getpid())}"
        try:
            _sweep(parent)
            os.mkdir(path)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            if version == 2:
                _write(fd, "cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))
            _try_to_join(path)
        except OSError as error:
            reasons.update(dict.fromkeys(controllers, f"{parent}: {error.strerror}"))
            _remove_tree(path)
        else:
            folders.append(Folder(controllers, path, fd))
            reasons = {name: why for name, why in reasons.items() if name not in controllers}
    return PoolCgroup(version if folders else 0, tuple(folders), reasons)


def close_pool(pool: PoolCgroup) -> None:
    for folder in pool.folders:
        _remove_tree(folder.path)


def create(pool: PoolCgroup, order: Order) -> SandboxCgroup:
    """Make one sandbox's group and set its limits."""
    joins: list[int] = []
    counters: dict[str, int] = {}
    try:
        for folder in pool.folders:
            os.mkdir(order.name, dir_fd=folder.fd)
            group = os.open(order.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder.fd)
            joins.append(group)
            for controller in folder.controllers:
                _set_limit(group, pool.version, controller, order)
            _open_counters(group, _COUNTERS[pool.version], counters)
            joins[-1] = os.open("cgroup.procs", os.O_WRONLY, dir_fd=group)
            os.close(group)
    except OSError:
        for fd in (*joins, *counters.values()):
            os.close(fd)
        raise
    return SandboxCgroup(tuple(joins), *map(counters.get, _COUNTERS[pool.version]))


def remove(pool: PoolCgroup, name: str) -> bool:
    """Remove one sandbox's group. False while the kernel still holds it busy."""
    for folder in pool.folders:
        try:
            os.rmdir(name, dir_fd=folder.fd)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def count(fd: int | None, key: str) -> int:
    """One number of a file of `key value` lines, 0 if it has none."""
    lines = os.pread(fd, 4096, 0).decode().splitlines() if fd is not None else []
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), 0)


def restart_peak(group: SandboxCgroup) -> None:
    """Measure the peak anew. v2 can since Linux 6.12; before, it is that of the whole sandbox."""
    if group.peak is not None:
        try:
            os.pwrite(group.peak, b"0", 0)
        except OSError:
            return


def peak_bytes(group: SandboxCgroup) -> int:
    return int(os.pread(group.peak, 64, 0)) if group.peak is not None else 0


_COUNTERS: dict[int, tuple[str, ...]] = {
    0: ("no events", "no events", "no peak"),
    1: ("memory.oom_control", "pids.events", "memory.max_usage_in_bytes"),
    2: ("memory.events", "pids.events", "memory.peak"),
}


def _set_limit(group: int, version: int, controller: str, order: Order) -> None:
    memory = str(order.memory_mb << 20)
    quota_us = max(1000, int(order.cpus * CPU_PERIOD_US))
    if controller == "pids":
        _write(group, "pids.max", str(order.pids))
    elif controller == "cpu" and version == 1:
        _write(group, "cpu.cfs_period_us", str(CPU_PERIOD_US))
        _write(group, "cpu.cfs_quota_us", str(quota_us))
    elif controller == "cpu":
        _write(group, "cpu.max", f"{quota_us} {CPU_PERIOD_US}")
    elif version == 1:
        _write(group, "memory.limit_in_bytes", memory)
        _write(group, "memory.memsw.limit_in_bytes", memory, optional=True)
    else:
        _write(group, "memory.max", memory)
        _write(group, "memory.swap.max", "0", optional=True)


def _try_to_join(path: str) -> None:
    """Move a throw-away child into a group below `path`. Raises OSError if that is not allowed."""
    trial = f"{path}/trial"
    os.mkdir(trial)
    pid = os.fork()
    if pid == 0:
        try:
            fd = os.open(f"{trial}/cgroup.procs", os.O_WRONLY)
            os.write(fd, b"0")
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.rmdir(trial)
    if code:
        raise OSError(code, os.strerror(code))


def _sweep(parent: str) -> None:
    for name in os.listdir(parent):
        if name.startswith(PREFIX):
            identity = name.removeprefix(PREFIX)
            pid = identity.partition("-")[0]
            if pid.isdigit() and _identity(int(pid)) != identity:
                _remove_tree(f"{parent}/{name}")


def _identity(pid: int) -> str:
    """A name for a process that no later process with its number will have: pid and start time."""
    # The command's name, in parentheses, may hold anything: count the fields after it.
    fields = read(f"/proc/{pid}/stat").rpartition(") ")[2].split(" ")
    return f"{pid}-{fields[19]}" if len(fields) > 19 else f"{pid}-gone"


def _remove_tree(path: str) -> None:
    try:
        for child in [entry.path for entry in os.scandir(path) if entry.is_dir()]:
            os.rmdir(child)
        os.rmdir(path)
    except OSError:
        # Still busy, or never made: the next pool sweeps it away.
        return


def _open_counters(group: int, names: tuple[str, ...], opened: dict[str, int]) -> None:
    """Add those that this group has, to be written where that is possible."""
    for name in names:
        for mode in (os.O_RDWR, os.O_RDONLY):
            if name not in opened:
                with suppress(OSError):
                    opened[name] = os.open(name, mode, dir_fd=group)


def _write(folder: int, name: str, text: str, *, optional: bool = False) -> None:
    try:
        fd = os.open(name, os.O_WRONLY, dir_fd=folder)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError:
        if not optional:
            raise
