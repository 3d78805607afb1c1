"""Events and findings of a run."""

from __future__ import annotations

from pathlib import Path

from practicum.observe.runlog import RunLog, read_events, read_findings
from practicum.verdicts import Finding

NEVER = Finding("never_passes", "addition", "0 of 48 attempts", "task-1")
SHARE = Finding("infra_share", "reversal", "31 % of attempts were lost")


def test_a_repeated_finding_is_listed_once_with_its_first_step(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.event("started", pid=1)
    log.findings(3, [NEVER])
    log.findings(4, [NEVER, SHARE])
    found = read_findings(tmp_path / "log.jsonl")
    assert [(entry.step, entry.finding) for entry in found] == [(3, NEVER), (4, SHARE)]
    assert read_events(tmp_path / "log.jsonl")[0]["pid"] == 1


def test_a_torn_line_spoils_neither_what_was_before_nor_what_comes_after(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    RunLog(path).findings(0, [NEVER])
    with path.open("a") as file:
        file.write('{"event": "find')
    RunLog(path).findings(1, [SHARE])
    assert [entry.finding for entry in read_findings(path)] == [NEVER, SHARE]
    assert read_findings(tmp_path / "none.jsonl") == []


def test_growing_evidence_replaces_the_old_and_keeps_the_first_step(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    log = RunLog(path)
    for step, evidence in enumerate(["9 of 10", "19 of 20", "19 of 20"]):
        log.findings(step, [Finding("zero_signal", "sums", evidence)])
    assert len(read_events(path)) == 2, "what is known is not repeated"
    (found,) = read_findings(path)
    assert (found.step, found.finding.evidence) == (0, "19 of 20")
