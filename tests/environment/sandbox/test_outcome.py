"""From what PID 1 reports to one word that says how a command ended."""

import signal
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environment.sandbox.outcome import Report, classify, parse_report
from practicum.environment.sandbox.zygote.wire import WireError
from practicum.protocols import ExecOutcome

GOOD = Report(
    started=True,
    status=0,
    cpu_s=0.5,
    peak_bytes=1000,
    num_oom_kills=0,
    num_forks_refused=0,
    disk_is_full=False,
)
FAILED = replace(GOOD, status=1 << 8)
KILLED = replace(GOOD, status=int(signal.SIGKILL))


@pytest.mark.parametrize(
    ("report", "timed_out", "truncated", "outcome"),
    [
        (GOOD, False, False, ExecOutcome.OK),
        (GOOD, False, True, ExecOutcome.OUTPUT_TRUNCATED),
        (FAILED, False, True, ExecOutcome.NONZERO),
        (KILLED, False, False, ExecOutcome.NONZERO),
        (KILLED, True, False, ExecOutcome.TIMEOUT),
        (replace(KILLED, num_oom_kills=1), True, False, ExecOutcome.TIMEOUT),
        (replace(KILLED, num_oom_kills=1), False, False, ExecOutcome.OOM),
        (replace(GOOD, num_oom_kills=1), False, False, ExecOutcome.OOM),
        (replace(FAILED, num_forks_refused=3), False, False, ExecOutcome.PIDS),
        (replace(GOOD, num_forks_refused=3), False, False, ExecOutcome.OK),
        (replace(FAILED, disk_is_full=True), False, False, ExecOutcome.DISK),
        (replace(GOOD, disk_is_full=True), False, False, ExecOutcome.OK),
        (replace(FAILED, started=False), False, False, ExecOutcome.INFRA_ERROR),
        (replace(KILLED, started=False, num_oom_kills=1), False, False, ExecOutcome.OOM),
    ],
)
def test_the_most_telling_cause_wins(
    report: Report, timed_out: bool, truncated: bool, outcome: ExecOutcome
) -> None:
    assert classify(report, timed_out=timed_out, is_truncated=truncated) is outcome


def test_a_report_survives_the_wire() -> None:
    assert parse_report(asdict(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "0"),
        ("status", None),
        ("status", True),
        ("status", 1 << 40),
        ("status", 0x137F),
        ("cpu_s", -1.0),
        ("cpu_s", float("nan")),
        ("cpu_s", float("inf")),
        ("peak_bytes", -1),
        ("peak_bytes", 1 << 70),
        ("num_oom_kills", 0.5),
        ("started", 1),
        ("disk_is_full", "no"),
        ("extra", 1),
    ],
)
def test_a_report_with_nonsense_is_refused(field: str, value: object) -> None:
    with pytest.raises(WireError):
        parse_report({**asdict(GOOD), field: value})


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from(list(asdict(GOOD))), st.integers() | st.floats() | st.text())
)
def test_no_message_raises_anything_else(message: dict[str, object]) -> None:
    with pytest.raises(WireError):
        parse_report(message)
