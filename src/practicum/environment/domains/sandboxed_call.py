"""Calls a function that the policy wrote, inside a sandbox, and brings back plain values.

The one thing to know: nothing that should stay secret goes in, and what comes out is data of exact
built-in types. So an object that equals everything, an early `os._exit(0)` or a printed "PASS" wins
nothing: to be right, the solution must produce the right values.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

from practicum.errors import GraderError, InfraError
from practicum.protocols import ExecOutcome, ExecResult, SandboxPool, SandboxSpec

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
"""What may leave the sandbox. `True` is not 1 and 1 is not 1.0 here: see `same`."""

CPU_LIMIT_S = 2
"""For all calls of one solution together; the functions asked for need microseconds."""
WALL_LIMIT_S = 20.0
"""Against solutions that sleep."""
# A time-out scores 0 whatever the CPU time says: sleeping and starving look alike, and whoever
# sleeps must not get another try. So nobody may starve: on a single core, beside endless loops in
# all other places of the verifiers' gate (8, each 2 s of CPU time), there is time for everything.
SPEC = SandboxSpec(memory_mb=256, storage_mb=16, pids=16, timeout_s=30.0)
MAX_OUTPUT = 64 * 1024

HARNESS = (resources.files("practicum.environment.domains") / "call_harness.py").read_text()
_LOST = frozenset({ExecOutcome.SANDBOX_DEAD, ExecOutcome.INFRA_ERROR})
_SHORT_OF = frozenset({ExecOutcome.OOM, ExecOutcome.PIDS, ExecOutcome.DISK})


@dataclass(frozen=True, slots=True)
class Returned:
    value: Value


@dataclass(frozen=True, slots=True)
class Raised:
    error: str


@dataclass(frozen=True, slots=True)
class Calls:
    """What came of the calls: one outcome for each, or the problem that prevented all of them."""

    outcomes: tuple[Returned | Raised, ...] = ()
    problem: str = ""
    forged: bool = False
    """Somebody other than the harness wrote into its channel."""


async def call_function(
    sandboxes: SandboxPool, source: str, entry: str, calls: Sequence[Sequence[Value]]
) -> Calls:
    """Define `source` in a fresh sandbox and call its function `entry` with each list of arguments.

    Raises InfraError if the machinery failed and GraderError if the harness never started: neither
    says anything about the solution.
    """
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "source": source,
        "entry": entry,
        "calls": calls,
        "cpu_limit_s": CPU_LIMIT_S,
    }
    async with sandboxes.open(SPEC) as sandbox:
        result = await sandbox.exec(
            ["python3", "-I", "-S", "-c", HARNESS],
            stdin=json.dumps(request).encode(),
            timeout_s=WALL_LIMIT_S,
            max_output=MAX_OUTPUT,
        )
    if result.outcome in _LOST:
        raise InfraError(f"the sandbox was lost while a solution ran: {result.outcome}")
    return _read(result, nonce.encode(), len(calls))


def same(left: Value, right: Value) -> bool:
    """Equal in value and in exact type, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


def _read(result: ExecResult, nonce: bytes, num_calls: int) -> Calls:
    ready = nonce + b" ready\n"
    if not result.stdout.startswith(ready):
        _raise_not_ready(result)
    body = result.stdout.removeprefix(ready)
    if result.stdout_truncated:
        return Calls(problem="wrote more than any report into the harness's channel", forged=True)
    if b"\n" not in body:
        return Calls(problem=_why_no_report(result))
    calls = _parse(body, nonce + b" ", num_calls)
    return calls or Calls(problem="wrote a report of its own making", forged=True)


def _raise_not_ready(result: ExecResult) -> None:
    tail = result.stderr[-300:].decode(errors="replace")
    if result.outcome is ExecOutcome.TIMEOUT:
        raise InfraError(f"python3 did not start within {WALL_LIMIT_S} s in the sandbox")
    if result.outcome in _SHORT_OF:  # no line of the solution has run yet
        raise InfraError(f"python3 could not start in the sandbox ({result.outcome}): {tail!r}")
    raise GraderError(
        f"the test harness did not start in the sandbox ({result.outcome}, exit code {result.rc}): "
        f"{tail!r}. Is there a python3 in the sandbox's image?"
    )


def _why_no_report(result: ExecResult) -> str:
    if result.outcome is ExecOutcome.TIMEOUT or result.cpu_s >= CPU_LIMIT_S:
        return f"time_limit: no result after {result.cpu_s:.1f} s of CPU time"
    if result.outcome in (ExecOutcome.OK, ExecOutcome.NONZERO):
        return f"ended without a result (exit code {result.rc}, signal {result.signal})"
    return f"{result.outcome}: no result"


def _parse(body: bytes, prefix: bytes, num_calls: int) -> Calls | None:
    """The harness's one line, or None if this cannot be it."""
    if not body.startswith(prefix):
        return None
    try:
        report: Any = json.loads(body.removeprefix(prefix), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    match report:
        case {"broken": str(error), **rest} if not rest:
            return Calls(problem=error[:200])
        case {"outcomes": [*entries], **rest} if not rest and len(entries) == num_calls:
            outcomes = [_outcome(entry) for entry in entries]
            known = tuple(outcome for outcome in outcomes if outcome is not None)
            return Calls(outcomes=known) if len(known) == num_calls else None
        case _:
            return None


def _outcome(entry: Any) -> Returned | Raised | None:
    match entry:
        case {"value": value, **rest} if not rest:
            return Returned(value)
        case {"error": str(error), **rest} if not rest:
            return Raised(error[:200])
        case _:
            return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
