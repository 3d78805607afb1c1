"""The system calls that Python lacks, through ctypes. Each raises OSError saying what it did."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
AT_RECURSIVE = 0x8000
AT_FDCWD = -100

RESOLVE_NO_MAGICLINKS = 0x2

PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

# Calls that are newer than 2019 have one number on every architecture.
_CLOSE_RANGE, _OPENAT2, _MOUNT_SETATTR = 436, 437, 442
_MAX_DESCRIPTOR = 0xFFFF_FFFE
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)
_machine = os.uname().machine


def _check(result: int, doing: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), doing)
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), f"setns {kind:#x}")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def detach(target: str) -> None:
    """Unmount lazily, with everything below."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"unmount {target}")


def set_mount_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Add restrictions (`MOUNT_ATTR_*`) to a mount, or to all mounts below it. Linux 5.12."""
    request = struct.pack("=QQQQ", attributes, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(AT_RECURSIVE if recursive else 0),
        request,
        ctypes.c_size_t(len(request)),
    )
    _check(result, f"restrict the mount {target}")


def pivot_root_here() -> None:
    """Make the working directory the root, and forget the old root and all its mounts."""
    number = _PIVOT_ROOT[_machine]
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    # The old root now lies on top of the new one at the same place.
    detach(".")
    os.chdir("/")


def open_no_magic(path: str, flags: int, mode: int = 0) -> int:
    """Open a file, following ordinary links but never those of /proc that jump anywhere."""
    if "\0" in path:
        raise ValueError("a path with a null character")
    request = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, RESOLVE_NO_MAGICLINKS)
    result = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(AT_FDCWD),
        os.fsencode(path),
        request,
        ctypes.c_size_t(len(request)),
    )
    return _check(result, path)


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    first = 0
    for fd in (*sorted(set(keep)), _MAX_DESCRIPTOR + 1):
        if fd > first:
            result = _libc.syscall(
                ctypes.c_long(_CLOSE_RANGE),
                ctypes.c_uint(first),
                ctypes.c_uint(fd - 1),
                ctypes.c_uint(0),
            )
            _check(result, f"close descriptors {first} to {fd - 1}")
        first = fd + 1


def prctl(option: int, second: int = 0, third: int = 0) -> None:
    result = _libc.prctl(
        ctypes.c_int(option),
        ctypes.c_ulong(second),
        ctypes.c_ulong(third),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    _check(result, f"prctl {option}")


def install_seccomp(program: bytes) -> None:
    """Bind a BPF program to this process and all that it starts, for good."""
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a count of 8-byte instructions, padding, a pointer.
    header = struct.pack("@HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    buffer = ctypes.create_string_buffer(header, len(header))
    filter_mode = 2
    prctl(PR_SET_SECCOMP, filter_mode, ctypes.addressof(buffer))


def set_capabilities(mask: int) -> None:
    """Set the effective and permitted capabilities to `mask`, the inheritable ones to nothing."""
    version_3 = 0x2008_0522
    header = struct.pack("=Ii", version_3, 0)
    low, high = mask & 0xFFFF_FFFF, mask >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    _check(_libc.capset(header, data), "capset")


def permitted_capabilities() -> int:
    version_3 = 0x2008_0522
    header = struct.pack("=Ii", version_3, 0)
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(header, data), "capget")
    words = struct.unpack("=6I", data.raw)
    return words[1] | words[4] << 32
