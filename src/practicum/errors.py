"""What can go wrong, by name.

Every error says what was wrong, where, and what to do next. The class decides what happens with it:
a `UsageError` is the user's to mend (exit code 2), an `InfraError` is the machine's (retried or
counted, exit code 4), a `GraderError` is a verifier's. None of them ever becomes a reward of 0.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PracticumError(Exception):
    """The root of all errors that Practicum raises on purpose."""

    exit_code = 1


class UsageError(PracticumError, ValueError):
    """Something a person asked for cannot be done as asked. Exit code 2."""

    exit_code = 2


class InfraError(PracticumError):
    """The machinery failed (engine, sandbox host, disk), not the policy. Exit code 4."""

    exit_code = 4


class PolicyDead(InfraError):
    """The engine cannot answer any more; the run stops with its last state safe."""


class SandboxError(InfraError):
    """A sandbox could not be created or was lost."""


class GraderError(PracticumError):
    """A verifier broke or contradicted itself; the attempt is unscorable, not wrong."""

    exit_code = 4


class StoreError(InfraError):
    """The run folder could not be written or read back intact."""


class Stopped(PracticumError):
    """A person or the system asked the run to stop. Exit code 130."""

    exit_code = 130


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a typo: `" Did you mean 'reward'?"`, or the known words when nothing is close.

    Example:
        >>> did_you_mean("grppo", ["grpo", "dr_grpo"])
        " Did you mean 'grpo'?"
    """
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(known)}." if known else ""
