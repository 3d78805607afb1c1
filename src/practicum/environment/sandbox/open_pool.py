"""The one place that decides how model-written code is run here."""

from __future__ import annotations

from practicum.environment.sandbox.local import LocalSandboxPool
from practicum.environment.sandbox.probe import capabilities
from practicum.environment.sandbox.process import ProcessSandboxPool
from practicum.errors import UsageError
from practicum.protocols import SandboxPool


def open_pool(*, unsafe: bool = False) -> SandboxPool:
    """A pool of isolated sandboxes; with `unsafe`, one without isolation where there is no other.

    Raises UsageError that names the missing isolation and how to enable it.
    """
    found = capabilities()
    if found.isolation == "namespaces":
        return LocalSandboxPool()
    if unsafe:
        return ProcessSandboxPool()
    raise UsageError(
        f"model-written code needs an isolated sandbox, and this machine gives none: "
        f"{found.missing}. To enable it: {'; or '.join(found.remedies)}. To run without isolation, "
        f"on a machine you can lose: --unsafe-sandbox (config: sandbox.unsafe = true)"
    )
