"""The zygote: a small single-threaded process that forks sandboxes, and the keeper that guards it.

The trainer has threads and must not fork; it starts this instead. The keeper makes a PID namespace
whose PID 1 is the zygote, so when the zygote ends, for whatever reason, the kernel kills every
sandbox. The keeper ends it when the host is gone, and clears away what the kernel does not.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from typing import Any, NamedTuple, NoReturn

from . import cgroups, house, init, privileges, syscalls, wire
from .cgroups import PoolCgroup
from .house import House
from .order import Order

PR_SET_PDEATHSIG = 1
RETRY_MS = 20


class Zygote(NamedTuple):
    control: socket.socket
    house: House
    cgroup: PoolCgroup
    pid_namespace: int
    as_root: bool
    running: dict[int, tuple[str, int]]
    """pid of a sandbox's PID 1 -> its name and lifeline."""
    leaving: list[tuple[str, int]]
    """Sandboxes whose processes are gone but whose control group is not yet."""


def main(control_fd: int) -> NoReturn:
    """Run as the keeper: `control_fd` is a socket to the host."""
    control = socket.socket(fileno=control_fd)
    hello, _ = wire.receive(control, max_bytes=wire.MAX_REQUEST)
    host = os.pidfd_open(hello["host_pid"])
    if os.getppid() != hello["host_pid"]:
        raise SystemExit("the host died while we started")
    as_root = privileges.may_act_as_root()
    cgroup = cgroups.open_pool()
    try:
        pid = _fork_zygote(as_root=as_root)
    except OSError as error:
        wire.send(control, {"failed": str(error.filename), "errno": error.errno})
        cgroups.close_pool(cgroup)
        raise SystemExit(1) from error
    if pid == 0:
        _be_zygote(control, hello["prefix"], cgroup, as_root=as_root)
    control.close()
    _keep(host, pid)
    cgroups.close_pool(cgroup)
    raise SystemExit(0)


def _fork_zygote(*, as_root: bool) -> int:
    if not as_root:
        proc_self = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
        uid, gid = os.geteuid(), os.getegid()
        try:
            privileges.enter_user_namespace(uid, gid, (uid, gid), proc_self)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "user namespace") from error
        os.close(proc_self)
    try:
        syscalls.unshare(syscalls.CLONE_NEWPID)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "pid namespace") from error
    return os.fork()


def _keep(host: int, pid: int) -> None:
    """Wait until the zygote ends or the host does; afterwards no process of the pool is left."""
    zygote = os.pidfd_open(pid)
    poll = select.poll()
    for fd in (host, zygote):
        poll.register(fd, select.POLLIN)
    poll.poll()
    signal.pidfd_send_signal(zygote, signal.SIGKILL)
    # Returns only when the kernel has ended all processes of the namespace.
    os.waitpid(pid, 0)


def _be_zygote(
    control: socket.socket, prefix: str, cgroup: PoolCgroup, *, as_root: bool
) -> NoReturn:
    code = 1
    try:
        syscalls.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        built = house.build(prefix)
        zygote = Zygote(control, built, cgroup, pid_namespace, as_root, {}, [])
        wire.send(
            control,
            {
                "ready": True,
                "cgroup_version": cgroup.version,
                "controllers": cgroup.controllers,
                "reasons": cgroup.reasons,
                "as_root": as_root,
            },
        )
        _serve(zygote)
    except OSError as error:
        wire.send(control, {"failed": f"mounts ({error.filename})", "errno": error.errno})
    except EOFError:
        code = 0
    finally:
        os._exit(code)


def _serve(zygote: Zygote) -> NoReturn:
    wakeup = init.watch_children()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poll = select.poll()
    for fd in (zygote.control.fileno(), wakeup):
        poll.register(fd, select.POLLIN)
    # Objects made until now are never collected, so that forked children do not copy their pages.
    gc.disable()
    gc.freeze()
    while True:
        for fd, _ in poll.poll(RETRY_MS if zygote.leaving else None):
            if fd == wakeup:
                os.read(wakeup, 4096)
                _reap(zygote)
            else:
                _obey(zygote)
        _let_go(zygote)


def _obey(zygote: Zygote) -> None:
    request, fds = wire.receive(zygote.control, max_bytes=wire.MAX_REQUEST, max_fds=2)
    match request.pop("do"):
        case "create":
            sandbox, lifeline = socket.socket(fileno=fds[0]), fds[1]
            with sandbox:
                _create(zygote, Order(**request), sandbox, lifeline)
        case _:
            for pid, (name, _) in zygote.running.items():
                if name == request["name"]:
                    os.kill(pid, signal.SIGKILL)


def _create(zygote: Zygote, order: Order, sandbox: socket.socket, lifeline: int) -> None:
    try:
        house.add_room(zygote.house, order.workdir)
        group = cgroups.create(zygote.cgroup, order)
    except OSError as error:
        _report(sandbox, {"failed": f"control group {error.filename}", "errno": error.errno})
        zygote.leaving.append((order.name, lifeline))
        return
    syscalls.unshare(syscalls.CLONE_NEWPID)
    try:
        pid = os.fork()
        if pid == 0:
            hard_memory = "memory" in zygote.cgroup.controllers
            init.run(sandbox, order, group, as_root=zygote.as_root, hard_memory=hard_memory)
        zygote.running[pid] = (order.name, lifeline)
    except OSError as error:
        _report(sandbox, {"failed": "fork", "errno": error.errno})
        zygote.leaving.append((order.name, lifeline))
    finally:
        syscalls.setns(zygote.pid_namespace, syscalls.CLONE_NEWPID)
        for fd in group.descriptors:
            os.close(fd)


def _report(sandbox: socket.socket, failure: dict[str, Any]) -> None:
    try:
        wire.send(sandbox, failure)
    except OSError:
        # The host has lost interest in this sandbox; the zygote serves the others.
        return


def _reap(zygote: Zygote) -> None:
    while zygote.running:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        zygote.leaving.append(zygote.running.pop(pid))


def _let_go(zygote: Zygote) -> None:
    """Close the lifelines of sandboxes of which nothing is left: so the host learns of it."""
    for name, lifeline in list(zygote.leaving):
        if cgroups.remove(zygote.cgroup, name):
            os.close(lifeline)
            zygote.leaving.remove((name, lifeline))
