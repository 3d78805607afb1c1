"""The file system of a sandbox: an empty house built once per pool, and furnished per sandbox.

The zygote builds the house, a small read-only tree of the machine's system folders and the running
interpreter, and moves into its mount namespace for good, so that the host's other files are not
even mounted where sandboxes are made. Each sandbox copies that namespace and adds private rooms.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from . import syscalls
from .order import Order

SYSTEM_FOLDERS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/etc/alternatives", "/etc/ld.so.conf.d"),
)
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
USER_ID = 1000
"""Who commands are inside, whatever they are outside."""

ETC = {
    "passwd": "root:x:0:0::/:/bin/sh\n"
    f"sandbox:x:{USER_ID}:{USER_ID}::/work:/bin/sh\n"
    "nobody:x:65534:65534::/:/bin/sh\n",
    "group": f"root:x:0:\nsandbox:x:{USER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}

ROOT = "/root"
"""Where the house stands in the zygote's own mount namespace, beside the host's /proc."""
_SITE = "/tmp"
"""Covered by the building site; any folder would do, all sources are opened before."""


class House(NamedTuple):
    foundation: int
    """Descriptor of the house's root folder that can still be written."""


def build(prefix: str) -> House:
    """Build the house in a new mount namespace, and leave the host's files behind."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    folders = [path for path in SYSTEM_FOLDERS if os.path.isdir(path)]
    if not any(prefix == folder or prefix.startswith(f"{folder}/") for folder in folders):
        folders.append(prefix)
    links = {path: os.readlink(path) for path in folders if os.path.islink(path)}
    files = [path for path in SYSTEM_FILES if os.path.isfile(path)]
    devices = [f"/dev/{name}" for name in DEVICES if os.path.exists(f"/dev/{name}")]
    sources = {path: os.open(path, os.O_PATH) for path in (*folders, *files, *devices, "/proc")}

    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", _SITE, "tmpfs", flags, "mode=0755,size=2m")
    os.chdir(_SITE)
    for name in ("root", "proc"):
        os.mkdir(name)
    _bind(sources["/proc"], "proc")
    foundation = os.open("root", os.O_RDONLY | os.O_DIRECTORY)
    _bind(foundation, "root")
    for path in folders:
        _show_folder(path, sources[path], links.get(path))
    for path in files:
        _show_file(path, sources[path])
    for name in ("proc", "tmp", "dev"):
        os.makedirs(f"root/{name}", exist_ok=True)
    for name, text in ETC.items():
        with open(f"root/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    read_only = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID
    syscalls.set_mount_attributes("root", read_only | syscalls.MOUNT_ATTR_NODEV, recursive=True)
    _build_dev({path: sources[path] for path in devices})

    syscalls.pivot_root_here()
    for fd in sources.values():
        os.close(fd)
    return House(foundation)


def add_room(house: House, workdir: str) -> None:
    """Make sure that there is an (empty) folder to mount a working directory on."""
    path = ""
    for part in workdir.strip("/").split("/"):
        path = f"{path}/{part}".lstrip("/")
        try:
            os.mkdir(path, dir_fd=house.foundation)
        except FileExistsError:
            continue


def furnish(order: Order, owner: int) -> None:
    """In a sandbox's mount namespace: /proc, and one bounded file system for all it may write."""
    os.chdir(ROOT)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    # Read-only, so that oom scores and everything in /proc/sys stay as they are; hidepid=2 hides
    # PID 1, whose memory and descriptors are not the commands' business.
    proc_flags = flags | syscalls.MS_NOEXEC | syscalls.MS_RDONLY
    syscalls.mount("proc", "proc", "proc", proc_flags, "hidepid=2")
    num_inodes = max(64, order.storage_mb * 256)
    options = f"mode=0755,size={order.storage_mb}m,nr_inodes={num_inodes}"
    syscalls.mount("tmpfs", "tmp", "tmpfs", flags, options)
    # One tmpfs with three folders, so that one number bounds them all together.
    for name, mode, target in (
        ("work", 0o755, order.workdir.lstrip("/")),
        ("shm", 0o1777, "dev/shm"),
        ("tmp", 0o1777, "tmp"),
    ):
        source = f"tmp/{name}"
        os.mkdir(source)
        os.chmod(source, mode)
        os.chown(source, owner, owner)
        syscalls.mount(source, target, "", syscalls.MS_BIND)


def _show_folder(path: str, source: int, link: str | None) -> None:
    target = f"root{path}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if link is not None:
        os.symlink(link, target)
    else:
        os.makedirs(target, exist_ok=True)
        _bind(source, target)


def _show_file(path: str, source: int) -> None:
    target = f"root{path}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _bind(source, target)


def _build_dev(devices: dict[str, int]) -> None:
    """After the rest, because devices must be usable in it."""
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("tmpfs", "root/dev", "tmpfs", flags, "mode=0755,size=64k")
    os.mkdir("root/dev/shm")
    for path, source in devices.items():
        _show_file(path, source)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"root/dev/{name}")
    syscalls.set_mount_attributes("root/dev", syscalls.MOUNT_ATTR_RDONLY, recursive=False)


def _bind(source: int, target: str) -> None:
    flags = syscalls.MS_BIND | syscalls.MS_REC
    syscalls.mount(f"/proc/self/fd/{source}", target, "", flags)
