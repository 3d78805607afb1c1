"""PID 1 of a sandbox: moves into its namespaces, gives up all rights, runs commands one by one.

When a command ends, everything that it started and left behind is killed before the host hears of
it. When the host is gone, PID 1 ends, and with it, by the kernel's hand, the whole sandbox.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from . import cgroups, house, privileges, seccomp, syscalls, wire
from .cgroups import SandboxCgroup
from .command import Bounds, Command, Reaped, become, kill_all, reap
from .order import Order

NAMESPACES = {
    "mount": syscalls.CLONE_NEWNS,
    "network": syscalls.CLONE_NEWNET,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
}


class SetupFailed(Exception):
    """A step that makes the sandbox did not work. `args` are the step and the errno."""


class Init(NamedTuple):
    """What PID 1 works with once it is set up."""

    control: socket.socket
    order: Order
    group: SandboxCgroup
    bounds: Bounds
    wakeup: int
    """Becomes readable when a child has ended."""
    started: mmap.mmap
    """One byte shared with the child: whether it got as far as being the command."""


def run(
    control: socket.socket, order: Order, group: SandboxCgroup, *, as_root: bool, hard_memory: bool
) -> NoReturn:
    """Be the sandbox's PID 1 until the host lets go of it."""
    code = 1
    try:
        proc_self = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
        syscalls.close_all_but([0, 1, 2, control.fileno(), proc_self, *group.descriptors])
        _set_up(order, proc_self, as_root=as_root)
        os.close(proc_self)
        num_processes = order.pids + (16 if group.pids_events is not None else 1)
        bounds = Bounds(num_processes, order.cpus, None if hard_memory else order.memory_mb << 20)
        init = Init(control, order, group, bounds, watch_children(), mmap.mmap(-1, mmap.PAGESIZE))
        wire.send(control, {"ready": True})
        _serve(init)
    except SetupFailed as failure:
        step, number = failure.args
        wire.send(control, {"failed": step, "errno": number})
    except EOFError:
        code = 0
    finally:
        os._exit(code)


def _set_up(order: Order, proc_self: int, *, as_root: bool) -> None:
    identity = privileges.identity_of_this_sandbox(as_root=as_root, proc_self=proc_self)
    steps: list[tuple[str, Callable[[], None]]] = [
        *((f"{name} namespace", _unsharing(flag)) for name, flag in NAMESPACES.items()),
        ("oom score", lambda: _become_first_victim(proc_self)),
        ("mounts", lambda: house.furnish(order, identity.uid)),
        ("network", lambda: _raise_loopback() if order.network == "loopback" else None),
        ("host name", lambda: socket.sethostname("sandbox")),
        ("pivot_root", syscalls.pivot_root_here),
        ("user namespace", lambda: privileges.take_identity(identity, proc_self)),
        ("privileges", lambda: privileges.give_up_everything(seccomp.assemble())),
        ("working directory", lambda: os.chdir(order.workdir)),
    ]
    # Not everywhere, and it hides little: no /sys is mounted in a sandbox.
    with suppress(OSError):
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)
    for name, step in steps:
        try:
            step()
        except OSError as error:
            raise SetupFailed(f"{name} ({error.filename})", error.errno) from error
    privileges.restore_signals()


def _unsharing(flag: int) -> Callable[[], None]:
    return lambda: syscalls.unshare(flag)


def _become_first_victim(proc_self: int) -> None:
    """If the whole machine runs out of memory, sandboxes go first. Inherited, and for good."""
    fd = os.open("oom_score_adj", os.O_WRONLY, dir_fd=proc_self)
    os.write(fd, b"1000")
    os.close(fd)


def _raise_loopback() -> None:
    siocsifflags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", up_and_running)
        fcntl.ioctl(sock, siocsifflags, request)


def _wake(number: int, frame: FrameType | None) -> None:
    """Having a handler is what makes Python write to the wake-up descriptor."""


def watch_children() -> int:
    """A descriptor that becomes readable whenever a child has ended."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, _wake)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _serve(init: Init) -> NoReturn:
    while True:
        request, fds = wire.receive(init.control, max_bytes=wire.MAX_REQUEST, max_fds=3)
        match request["do"]:
            case "run":
                wire.send(init.control, _run(init, request, fds))
            case "read" | "write" as what:
                _send_file(init.control, request["path"], to_write=what == "write")
            case _:
                # A kill that came after its command had ended.
                continue


def _run(init: Init, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
    command = Command(request["argv"], request["env"], request["cwd"], request["timeout_s"])
    group = init.group
    oom_before = cgroups.count(group.memory_events, "oom_kill")
    refused_before = cgroups.count(group.pids_events, "max")
    cgroups.restart_peak(group)
    init.started[0] = 0
    pid = os.fork()
    if pid == 0:
        become(command, fds, group, init.bounds, init.started)
    for fd in fds:
        os.close(fd)
    ended = _wait(init, pid)
    disk = os.statvfs(init.order.workdir)
    return {
        "started": init.started[0] == 1,
        "status": ended.status,
        "cpu_s": ended.cpu_s,
        "peak_bytes": cgroups.peak_bytes(group) or ended.peak_bytes,
        "num_oom_kills": cgroups.count(group.memory_events, "oom_kill") - oom_before,
        "num_forks_refused": cgroups.count(group.pids_events, "max") - refused_before,
        "disk_is_full": disk.f_bfree == 0 or disk.f_ffree == 0,
    }


def _wait(init: Init, pid: int) -> Reaped:
    """Until the command has ended or the host wants it killed; then nothing of it is left."""
    poll = select.poll()
    poll.register(init.control, select.POLLIN)
    poll.register(init.wakeup, select.POLLIN)
    reaped = Reaped(None, 0.0, 0)
    while reaped.status is None:
        for fd, _ in poll.poll():
            if fd == init.wakeup:
                os.read(init.wakeup, 4096)
                reaped = reap(pid, reaped)
            else:
                wire.receive(init.control, max_bytes=wire.MAX_REQUEST)
                kill_all()
    kill_all()
    return reap(pid, reaped, block=True)


def _send_file(control: socket.socket, path: str, *, to_write: bool) -> None:
    """Open a file with the rights of the commands themselves, and hand the descriptor out."""
    try:
        fd = _create(path) if to_write else _open(path)
    except OSError as error:
        wire.send(control, {"errno": error.errno})
        return
    except ValueError:
        wire.send(control, {"errno": errno.EINVAL})
        return
    wire.send(control, {"errno": 0}, [fd])
    os.close(fd)


def _open(path: str) -> int:
    # Opening a FIFO to read would wait for a writer.
    fd = syscalls.open_no_magic(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if os.fstat(fd).st_dev == os.stat("/proc").st_dev:
        # /proc/self would be PID 1 itself.
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "in /proc", path)
    return fd


def _create(path: str) -> int:
    """A new file, whatever was there before: a link planted at `path` is replaced, not followed."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return syscalls.open_no_magic(path, flags, 0o644)
