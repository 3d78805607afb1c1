"""Turns a step that failed into words: which isolation is missing here, and how to enable it."""

from __future__ import annotations

import errno
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from practicum.environment.sandbox.launch import NotPossible

SETTINGS = Path("/proc/sys")
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_IN_A_CONTAINER = (
    "in Docker or Podman, start the container with --privileged, or with --cap-add SYS_ADMIN "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why there are no isolated sandboxes on this machine."""

    missing: str
    """The isolation, and what the system said."""
    remedies: tuple[str, ...]

    def as_text(self) -> str:
        return (
            f"isolated sandboxes do not work here: {self.missing}. To enable them: "
            + "; or ".join(self.remedies)
        )


def explain(error: NotPossible) -> Explanation:
    """Look at this machine's settings to say what would mend the failed step."""
    return Explanation(missing=str(error), remedies=tuple(_remedies(error.errno)))


def _remedies(code: int) -> list[str]:
    if platform.system() != "Linux":
        return ["run on Linux (on Windows: in WSL2)"]
    remedies: list[str] = []
    if code == errno.ENOSYS:
        remedies.append(f"use Linux 5.12 or newer; this is {platform.release()}")
    if _setting("kernel/unprivileged_userns_clone") == "0":
        remedies.append("sysctl -w kernel.unprivileged_userns_clone=1")
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        remedies.append("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts"):
        name = f"max_{kind}_namespaces"
        if _setting(f"user/{name}") == "0" or (code == errno.ENOSPC and kind == "user"):
            remedies.append(f"sysctl -w user.{name}=10000")
    if _is_container():
        remedies.append(_IN_A_CONTAINER)
    return remedies or ["run as root, or where ordinary users may make user namespaces"]


def _setting(name: str) -> str:
    try:
        return (SETTINGS / name).read_text().strip()
    except OSError:
        return ""


def _is_container() -> bool:
    return any(Path(mark).exists() for mark in CONTAINER_MARKS)
