"""What a sandbox is asked to be, checked before it is made, and what its commands find set."""

from __future__ import annotations

import math
import sys
from pathlib import Path, PurePosixPath

from practicum.errors import UsageError
from practicum.protocols import SandboxSpec

RESERVED = ("/tmp", "/dev", "/proc", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix")


def check_spec(spec: SandboxSpec) -> None:
    """Raises UsageError naming the field, its value and what is allowed."""
    if spec.image != "host":
        raise UsageError(f"sandbox image {spec.image!r} is not known here; the only one is 'host'")
    for name in ("cpus", "memory_mb", "storage_mb", "pids", "timeout_s"):
        value = getattr(spec, name)
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"sandbox {name} = {value!r} must be a number above 0")
    if spec.network not in ("none", "loopback"):
        raise UsageError(f"sandbox network {spec.network!r} must be 'none' or 'loopback'")
    _check_workdir(spec.workdir)
    for path in spec.files:
        check_relative(path)


def check_relative(path: str) -> None:
    """Raises UsageError for a file that would lie outside of the working directory."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise UsageError(
            f"sandbox file {path!r} must be a path relative to the working directory, without '..'"
        )


def _check_workdir(workdir: str) -> None:
    path = PurePosixPath(workdir)
    is_normal = (
        path.root == "/" and workdir == str(path) and ".." not in path.parts and "\0" not in workdir
    )
    if not workdir.startswith("/") or workdir == "/" or not is_normal:
        raise UsageError(f"sandbox workdir {workdir!r} must be an absolute path such as /work")
    top = "/" + path.parts[1]
    if top in RESERVED:
        raise UsageError(f"sandbox workdir {workdir!r} lies in {top}; choose another, like /work")


def base_environment(home: str, temporary: str) -> dict[str, str]:
    """The environment of every command; what the host has set is never part of it."""
    interpreter = Path(sys.base_prefix).resolve() / "bin"
    return {
        "PATH": f"{interpreter}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": home,
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
        "USER": "sandbox",
    }
