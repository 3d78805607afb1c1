"""`log.jsonl`: what happened besides numbers, one event a line; findings above all."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from practicum.observe.files import disk_error, torn_bytes
from practicum.verdicts import Finding


@dataclass(frozen=True, slots=True)
class LoggedFinding:
    """A finding with its newest evidence, and the step that first made it."""

    step: int
    finding: Finding


Subject = tuple[str, str, str | None]
"""What a finding is about: kind, domain and task. Its evidence grows while a run goes on."""


def subject(finding: Finding) -> Subject:
    return finding.kind, finding.domain, finding.task_id


class RunLog:
    """Appends events; a torn line left by a kill is closed off by the next writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[Subject, Finding] = {}
        try:
            torn = torn_bytes(path) > 0
            self._file = path.open("a", encoding="utf-8", errors="replace")
        except OSError as error:
            raise disk_error(path, error) from error
        if torn:
            self._file.write("\n")

    def event(self, event: str, /, **facts: Any) -> None:
        """One line with the wall-clock time; facts must be JSON-able."""
        assert not {"time", "event"} & set(facts), "`time` and `event` belong to the line itself"
        line = json.dumps({"time": round(time.time(), 3), "event": event} | facts)
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise disk_error(self._path, error) from error

    def findings(self, step: int, findings: Sequence[Finding]) -> None:
        """What quality control noticed in this step; what is known already is not repeated."""
        for finding in findings:
            if self._told.get(subject(finding)) != finding:
                self._told[subject(finding)] = finding
                self.event("finding", step=step, **asdict(finding))

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events of a `log.jsonl`; torn lines are passed over, a missing file is empty."""
    if not path.exists():
        return []
    events: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def read_findings(path: Path) -> list[LoggedFinding]:
    """Every finding once, with its newest evidence and the first step that made it."""
    found: dict[Subject, LoggedFinding] = {}
    for event in read_events(path):
        if event.get("event") == "finding":
            finding = Finding(
                str(event["kind"]), str(event["domain"]), str(event["evidence"]), event["task_id"]
            )
            known = found.get(subject(finding))
            step = known.step if known else int(event["step"])
            found[subject(finding)] = LoggedFinding(step, finding)
    return list(found.values())
