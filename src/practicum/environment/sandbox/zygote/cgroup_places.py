"""Where on this machine a pool may make control groups, v1 or v2."""

from __future__ import annotations

import os
from typing import NamedTuple

CONTROLLERS: tuple[str, ...] = ("memory", "pids", "cpu")


class Place(NamedTuple):
    """A group below which we can make children, and the controllers that those will have."""

    controllers: tuple[str, ...]
    path: str


class Mount(NamedTuple):
    root: str
    """The group, within its hierarchy, that the mount shows."""
    path: str
    kind: str
    """`cgroup` (v1) or `cgroup2`."""
    options: list[str]


def find_places() -> tuple[int, list[Place]]:
    """The version to use (0: none is mounted) and the places in its hierarchies."""
    groups, mounts = _own_groups(), _mounts()
    place = place_v2(groups, mounts)
    if place:
        return 2, [place]
    places = places_v1(groups, mounts)
    return (1 if places else 0), places


def place_v2(groups: dict[str, str], mounts: list[Mount]) -> Place | None:
    """The nearest group above us that hands out memory and pids and is ours to divide."""
    mount = next((mount for mount in mounts if mount.kind == "cgroup2"), None)
    if mount is None or "" not in groups:
        return None
    path = _path_of(groups[""], mount)
    while path.startswith(mount.path):
        offered = read(f"{path}/cgroup.subtree_control").split()
        if {"memory", "pids"} <= set(offered) and os.access(path, os.W_OK):
            return Place(tuple(name for name in CONTROLLERS if name in offered), path)
        path = os.path.dirname(path)
    return None


def places_v1(groups: dict[str, str], mounts: list[Mount]) -> list[Place]:
    """Our own group in each controller's hierarchy; several may share one."""
    controllers: dict[str, tuple[str, ...]] = {}
    for mount in mounts:
        for name in CONTROLLERS:
            if mount.kind == "cgroup" and name in mount.options and name in groups:
                path = _path_of(groups[name], mount)
                controllers[path] = (*controllers.get(path, ()), name)
    return [Place(names, path) for path, names in controllers.items()]


def _path_of(group: str, mount: Mount) -> str:
    relative = os.path.relpath(group, mount.root)
    # In a container our group may lie outside of what is mounted: the mount's root is all we see.
    inside = not relative.startswith("..")
    return os.path.normpath(os.path.join(mount.path, relative)) if inside else mount.path


def _own_groups() -> dict[str, str]:
    """Controller -> path of our group in its hierarchy; the v2 hierarchy has the empty name."""
    groups: dict[str, str] = {}
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _mounts() -> list[Mount]:
    mounts: list[Mount] = []
    for line in read("/proc/self/mountinfo").splitlines():
        mount, _, file_system = line.partition(" - ")
        kind, _, options = file_system.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, path = mount.split(" ")[3:5]
            mounts.append(Mount(root, path, kind, options.split(",")))
    return mounts


def read(path: str) -> str:
    """A small file of the kernel's, or nothing if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
