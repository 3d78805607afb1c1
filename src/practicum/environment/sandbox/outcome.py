"""How a command ended, from what the sandbox's PID 1 reports: data of hostile origin."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from practicum.environment.sandbox.pump import Pump
from practicum.environment.sandbox.zygote.wire import WireError
from practicum.protocols import ExecOutcome, ExecResult


@dataclass(frozen=True, slots=True)
class Report:
    """What PID 1 saw of one command."""

    started: bool
    """Whether the child got as far as being the command; if not, we are to blame."""
    status: int
    """Wait status of the command."""
    cpu_s: float
    peak_bytes: int
    num_oom_kills: int
    num_forks_refused: int
    disk_is_full: bool


def parse_report(message: Mapping[str, Any]) -> Report:
    """Raises WireError for anything that is not a report."""
    try:
        report = Report(**message)
    except TypeError:
        raise WireError("a report with other fields than expected") from None
    counts = (report.status, report.peak_bytes, report.num_oom_kills, report.num_forks_refused)
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in counts):
        raise WireError("a report with a number that cannot be")
    status = report.status
    if status > 0xFFFF or not (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
        raise WireError("a report of a command that has not ended")
    if type(report.cpu_s) is not float or not 0 <= report.cpu_s < math.inf:
        raise WireError("a report with a time that cannot be")
    if type(report.started) is not bool or type(report.disk_is_full) is not bool:
        raise WireError("a report with a flag that is none")
    return report


def classify(report: Report, *, timed_out: bool, is_truncated: bool) -> ExecOutcome:
    """The one thing that best says why the command ended as it did.

    Running out of memory is told by the kernel's counter, whatever the exit code. A refused fork or
    a full disk only counts for a command that failed: others have coped with it.
    """
    failed = report.status != 0
    if timed_out:
        return ExecOutcome.TIMEOUT
    if report.num_oom_kills:
        return ExecOutcome.OOM
    if not report.started:
        return ExecOutcome.INFRA_ERROR
    if failed and report.num_forks_refused:
        return ExecOutcome.PIDS
    if failed and report.disk_is_full:
        return ExecOutcome.DISK
    if failed:
        return ExecOutcome.NONZERO
    return ExecOutcome.OUTPUT_TRUNCATED if is_truncated else ExecOutcome.OK


def make_result(report: Report | None, pump: Pump, *, timed_out: bool, wall_s: float) -> ExecResult:
    """Everything about one command; without a report the sandbox died under it."""
    rc = signal = None
    outcome = ExecOutcome.SANDBOX_DEAD
    if report is not None:
        code = os.waitstatus_to_exitcode(report.status)
        rc, signal = (code, None) if code >= 0 else (None, -code)
        truncated = pump.stdout.is_truncated or pump.stderr.is_truncated
        outcome = classify(report, timed_out=timed_out, is_truncated=truncated)
    elif timed_out:
        outcome = ExecOutcome.TIMEOUT
    return ExecResult(
        outcome=outcome,
        rc=rc,
        signal=signal,
        stdout=bytes(pump.stdout.head),
        stderr=bytes(pump.stderr.head),
        stdout_truncated=pump.stdout.is_truncated,
        stderr_truncated=pump.stderr.is_truncated,
        stdout_bytes=pump.stdout.num_bytes,
        stderr_bytes=pump.stderr.num_bytes,
        wall_s=wall_s,
        cpu_s=report.cpu_s if report else 0.0,
        peak_memory_mb=report.peak_bytes / 2**20 if report else 0.0,
    )
