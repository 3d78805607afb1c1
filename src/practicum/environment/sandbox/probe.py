"""What kind of sandbox this machine can give, found out by making one; `practicum doctor` asks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from practicum.environment.sandbox.connection import Connection
from practicum.environment.sandbox.launch import NotPossible, Welcome, Zygote
from practicum.environment.sandbox.mending import explain
from practicum.environment.sandbox.specification import base_environment
from practicum.environment.sandbox.threads import Cancel
from practicum.environment.sandbox.zygote.order import Order
from practicum.errors import SandboxError

Strength = Literal["hard", "soft", "none"]

NAMESPACES = ("user", "mount", "pid", "network", "ipc", "uts")


@dataclass(frozen=True, slots=True)
class Limit:
    """How well one resource is bounded.

    Example:
        Limit("soft", "RLIMIT_AS for each process; no memory control group: /sys/... read-only")
    """

    strength: Strength
    """`hard`: the kernel holds it for the whole sandbox; `soft`: it can be exceeded somehow."""
    how: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What sandboxes on this machine are made of."""

    isolation: Literal["namespaces", "none"]
    namespaces: tuple[str, ...]
    own_uid: bool
    """Whether every sandbox gets a host uid of its own (as root) or shares its user's."""
    limits: Mapping[str, Limit]
    """By resource: memory, processes, cpu, disk, time, output."""
    cgroup_version: Literal[0, 1, 2]
    """0: no control groups for us."""
    python: bool
    """Whether the interpreter that runs Practicum also runs inside."""
    missing: str
    """What keeps isolation from working; empty if it works."""
    remedies: tuple[str, ...]
    """How to enable what is missing, or to make a soft limit hard."""


@functools.cache
def capabilities() -> Capabilities:
    """Try it: start the helper process, make a sandbox, run `true` in it. Once per process."""
    try:
        zygote = Zygote()
    except NotPossible as error:
        return _without(error)
    try:
        return _with(zygote.welcome, python=_try_out(zygote))
    except NotPossible as error:
        return _without(error)
    except SandboxError as error:
        return _without(NotPossible(str(error)))
    finally:
        zygote.close()


def _try_out(zygote: Zygote) -> bool:
    """Whether Python runs inside. Raises NotPossible or SandboxError if not even `true` does."""
    order = Order("probe", "/work", 256, 16, 16, 1.0, "none")
    connection = Connection(zygote, order, lifetime_s=60.0)
    try:
        if (code := _exit_code(connection, "true")) != 0:
            raise NotPossible(f"`true` ended with {code} in a sandbox")
        return _exit_code(connection, "python3", "-I", "-S", "-c", "pass") == 0
    finally:
        connection.close()


def _exit_code(connection: Connection, *argv: str) -> int | None:
    with Cancel() as cancel:
        result = connection.run(
            cancel,
            argv=argv,
            stdin=b"",
            env=base_environment("/work", "/tmp"),
            cwd="/work",
            timeout_s=20.0,
            max_output=4096,
        )
    return result.rc


def _with(welcome: Welcome, *, python: bool) -> Capabilities:
    remedies: list[str] = []
    if welcome.cgroup_version == 0:
        remedies.append(
            "for hard memory and CPU limits: run as root, or in a group of your own "
            "(systemd-run --user --scope -p Delegate=yes practicum ...)"
        )
    if not python:
        remedies.append(
            "to run Python inside: its folder must be readable for all users and not lie in /tmp"
        )
    return Capabilities(
        isolation="namespaces",
        namespaces=NAMESPACES,
        own_uid=welcome.as_root,
        limits=_limits(welcome),
        cgroup_version=welcome.cgroup_version,
        python=python,
        missing="",
        remedies=tuple(remedies),
    )


def _limits(welcome: Welcome) -> dict[str, Limit]:
    group = f"control group v{welcome.cgroup_version}"
    controllers = {"memory": "memory", "processes": "pids", "cpu": "cpu"}
    rlimits: dict[str, tuple[Strength, str]] = {
        "memory": ("soft", "RLIMIT_AS of each process, their sum unbounded"),
        "processes": ("hard", "RLIMIT_NPROC in the sandbox's own user namespace"),
        "cpu": ("soft", "RLIMIT_CPU of each process, no share of cores"),
    }

    def choose(resource: str, controller: str) -> Limit:
        if controller in welcome.controllers:
            return Limit("hard", group)
        strength, how = rlimits[resource]
        return Limit(strength, f"{how} ({welcome.reasons[controller]})")

    return {
        **{resource: choose(resource, name) for resource, name in controllers.items()},
        "disk": Limit("hard", "one tmpfs with a size and a number of files; counts as memory"),
        "time": Limit("hard", "the host's clock, and the kill of the whole PID namespace"),
        "output": Limit("hard", "capped where the host reads it"),
    }


def _without(error: NotPossible) -> Capabilities:
    explanation = explain(error)
    return Capabilities(
        isolation="none",
        namespaces=(),
        own_uid=False,
        limits={
            "memory": Limit("soft", "RLIMIT_AS of each process"),
            "processes": Limit("none", "no PID namespace to count in"),
            "cpu": Limit("soft", "RLIMIT_CPU of each process"),
            "disk": Limit("soft", "RLIMIT_FSIZE of each file"),
            "time": Limit("soft", "kill of the process group, which a command can leave"),
            "output": Limit("hard", "capped where the host reads it"),
        },
        cgroup_version=0,
        python=True,
        missing=explanation.missing,
        remedies=explanation.remedies,
    )
