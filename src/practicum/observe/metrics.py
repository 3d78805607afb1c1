"""The numbers of each step: one JSON line a step, flushed to the disk before the next step begins.

A killed run leaves at most a torn last line, which readers pass over and the next writer removes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from practicum.errors import StoreError
from practicum.observe.files import disk_error, replace_file, sync, torn_bytes

VOLATILE = frozenset({"memory/peak_gb"})
"""Differ between equal runs, beside everything under `time/`: left out of `digest`."""

Row = dict[str, float]


class MetricsLog:
    """A sink that writes `metrics.jsonl`. Steps must grow; after a resume, `rewind` first.

    Example:
        log.log(0, {"reward/mean": 0.25}); log.rows() == [{"step": 0, "reward/mean": 0.25}]
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._remove_torn_line()
            self._file = self.path.open("ab")
            sync(folder)
        except OSError as error:
            raise disk_error(self.path, error) from error
        rows = read_metrics(self.path)
        self._last = int(rows[-1]["step"]) if rows else -1

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Durable on return. Raises StoreError for a step that is already there."""
        assert "step" not in metrics, "`step` is the key of the row itself"
        if step <= self._last:
            raise StoreError(
                f"{self.path} already holds step {self._last}, so step {step} cannot follow; "
                "rewind the log to the checkpoint first"
            )
        row = {"step": step} | {name: _finite(value) for name, value in metrics.items()}
        try:
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise disk_error(self.path, error) from error
        self._last = step

    def rewind(self, num_steps: int) -> None:
        """Keep the rows of steps 0 .. num_steps - 1, in one atomic replacement of the file."""
        kept = [line for line in _lines(self.path) if json.loads(line)["step"] < num_steps]
        self._file.close()
        replace_file(self.path, b"".join(line + b"\n" for line in kept))
        self._file = self.path.open("ab")
        self._last = int(json.loads(kept[-1])["step"]) if kept else -1

    def rows(self) -> list[Row]:
        """All rows so far, in order."""
        return read_metrics(self.path)

    def digest(self) -> str:
        """sha256 of everything that an equal run would repeat."""
        return metrics_digest(self.rows())

    def close(self) -> None:
        self._file.close()

    def _remove_torn_line(self) -> None:
        if torn := torn_bytes(self.path):
            os.truncate(self.path, self.path.stat().st_size - torn)


def read_metrics(path: Path) -> list[Row]:
    """The rows of a `metrics.jsonl`, without a torn last line; empty if there is no file.

    Raises StoreError, with the line's number, if any other line is damaged.
    """
    rows: list[Row] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            row: dict[str, Any] = json.loads(line)
            rows.append({name: float(value) for name, value in row.items()})
            rows[-1]["step"] = int(row["step"])
        except (ValueError, OverflowError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{path}, line {number} is damaged: {error}") from error
    return rows


def metrics_digest(rows: list[Row]) -> str:
    """sha256 over the rows without timings and VOLATILE values."""
    total = hashlib.sha256()
    for row in rows:
        lasting = {
            name: _finite(value)
            for name, value in row.items()
            if not name.startswith("time/") and name not in VOLATILE
        }
        total.update(json.dumps(lasting, sort_keys=True).encode() + b"\n")
    return total.hexdigest()


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    *complete, _torn_or_empty = path.read_bytes().split(b"\n")
    return complete


def _finite(value: float) -> float | str:
    """JSON has no NaN; a word keeps the file readable by every parser."""
    value = float(value)
    return value if math.isfinite(value) else str(value)
