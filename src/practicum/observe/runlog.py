"""`log.jsonl`: what happened besides numbers, one event a line; findings above all."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from practicum.observe.files import disk_error, torn_bytes
from practicum.types import Finding


@dataclass(frozen=True, slots=True)
class LoggedFinding:
    """A finding and the step that made it."""

    step: int
    finding: Finding


class RunLog:
    """Appends events; a torn line left by a kill is closed off by the next writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
        """What quality control noticed in this step."""
        for finding in findings:
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
    """Every distinct finding once, with the first step that made it."""
    first: dict[Finding, int] = {}
    for event in read_events(path):
        if event.get("event") == "finding":
            finding = Finding(
                str(event["kind"]), str(event["domain"]), str(event["evidence"]), event["task_id"]
            )
            first.setdefault(finding, int(event["step"]))
    return [LoggedFinding(step, finding) for finding, step in first.items()]
