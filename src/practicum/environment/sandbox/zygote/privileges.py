"""Becoming nobody: how a sandbox's PID 1 gives up every right, for itself and all that it starts.

The user namespace comes last, after all mounts are made. Mounts, network and processes therefore
belong to a namespace that nobody inside has rights in, not even with every capability of their own.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from . import syscalls
from .house import USER_ID

FIRST_FREE_UID = 1_900_000_000
"""Above every range in use: plus a process id, it is a uid that no other sandbox has."""
_CAP_LAST = 63
_NEEDED = (0, 1, 6, 7, 8, 12, 21)
"""CAP_CHOWN, DAC_OVERRIDE, SETGID, SETUID, SETPCAP, NET_ADMIN, SYS_ADMIN."""


class Identity(NamedTuple):
    """Who a sandbox is in the eyes of the host."""

    uid: int
    is_foreign: bool
    """Whether the sandbox gets a uid of its own; without the right to that, it has its user's."""


def may_act_as_root() -> bool:
    """Whether this process can make namespaces without a user namespace around them."""
    permitted = syscalls.permitted_capabilities()
    return os.geteuid() == 0 and all(permitted >> capability & 1 for capability in _NEEDED)


def identity_of_this_sandbox(*, as_root: bool, proc_self: int) -> Identity:
    """`proc_self` is this process's folder in the host's /proc."""
    if not as_root:
        return Identity(os.geteuid(), is_foreign=False)
    fd = os.open("stat", os.O_RDONLY, dir_fd=proc_self)
    host_pid = int(os.read(fd, 64).split()[0])
    os.close(fd)
    return Identity(FIRST_FREE_UID + host_pid, is_foreign=True)


def enter_user_namespace(uid: int, gid: int, inside: tuple[int, int], proc_self: int) -> None:
    """Make a user namespace with a single user: `uid` outside, `inside` in it."""
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    # Only a dumpable process owns its own files in /proc.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside[0]} {uid} 1"),
        ("gid_map", f"{inside[1]} {gid} 1"),
    ):
        fd = os.open(name, os.O_WRONLY, dir_fd=proc_self)
        os.write(fd, text.encode())
        os.close(fd)


def take_identity(identity: Identity, proc_self: int) -> None:
    """Become the sandbox's user, in a user namespace of its own."""
    gid = identity.uid if identity.is_foreign else os.getegid()
    if identity.is_foreign:
        os.setgroups([])
        syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 1)
        os.setresgid(gid, gid, gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
        # Where user namespaces are restricted for ordinary users, our capabilities still open one.
        syscalls.set_capabilities(syscalls.permitted_capabilities())
    enter_user_namespace(identity.uid, gid, (USER_ID, USER_ID), proc_self)


def give_up_everything(seccomp_filter: bytes) -> None:
    """No capability, no way to gain one, no dangerous system call, not observable, for good."""
    # Undumpable: the commands have the same uid, and must not look into PID 1.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(_CAP_LAST + 1):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
        except OSError:
            break
    syscalls.set_capabilities(0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.install_seccomp(seccomp_filter)


def restore_signals() -> None:
    """Commands start with the usual dispositions, whatever Python or a parent did to signals."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
