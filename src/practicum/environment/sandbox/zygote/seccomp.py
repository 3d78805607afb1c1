"""The system-call filter: what no program in a sandbox may ask of the kernel, whoever it is.

The list holds calls that an unprivileged process can still reach and that either undo the isolation
or have a long history of kernel holes. Calls newer than this table do not exist (ENOSYS). Sockets
are an allow-list of families, since some (vsock, Bluetooth, crypto) ignore the network namespace.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence

# name: (x86_64, aarch64); None where the architecture has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "vhangup": (153, 58),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
INSPECTED: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "prlimit64": (302, 261),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
CLONE3 = 435
FIRST_UNKNOWN = 463
"""One above `mseal`. Also shuts out the x32 calls, whose numbers start at 2**30."""

AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
NEW_NAMESPACES = 0x7E02_0000
"""Every CLONE_NEW* flag that `clone` takes."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""

_ALLOW, _KILL, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16

Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, constant


def assemble(machine: str | None = None) -> bytes:
    """The filter as BPF for this, or the named, machine. KeyError for one without a table."""
    machine = machine or os.uname().machine
    arch = AUDIT_ARCH[machine]
    column = ("x86_64", "aarch64").index(machine)
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        *_when(_AT_LEAST, FIRST_UNKNOWN, [_refuse(errno.ENOSYS)]),
        # Its flags lie behind a pointer; libraries fall back to clone, whose flags can be seen.
        *_when(_EQUAL, CLONE3, [_refuse(errno.ENOSYS)]),
    ]
    for numbers in DENIED.values():
        number = numbers[column]
        if number is not None:
            program += _when(_EQUAL, number, [_refuse(errno.EPERM)])
    for name, numbers in INSPECTED.items():
        program += _when(_EQUAL, numbers[column], _inspect(name))
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _inspect(name: str) -> list[Instruction]:
    """What decides on a call by its arguments; always ends in a return. Looks at 32 bits only, as
    the kernel does for these arguments: comparing all 64 would let a set high bit pass."""
    allow: Instruction = (_RETURN, 0, 0, _ALLOW)
    if name == "clone":
        return [_argument(0), *_when(_ANY_BIT, NEW_NAMESPACES, [_refuse(errno.EPERM)]), allow]
    if name == "prlimit64":
        # Limits of others, such as PID 1, which has the same uid; 0 is the caller itself.
        return [_argument(0), *_when(_EQUAL, 0, [allow]), _refuse(errno.EPERM)]
    if name == "ioctl":
        refusals = [
            instruction
            for request in (TIOCSTI, TIOCLINUX)
            for instruction in _when(_EQUAL, request, [_refuse(errno.EPERM)])
        ]
        return [_argument(1), *refusals, allow]
    permissions = [
        instruction for family in SOCKET_FAMILIES for instruction in _when(_EQUAL, family, [allow])
    ]
    return [_argument(0), *permissions, _refuse(errno.EAFNOSUPPORT)]


def _when(test: int, constant: int, then: Sequence[Instruction]) -> list[Instruction]:
    return [(test, 0, len(then), constant), *then]


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index)


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)
