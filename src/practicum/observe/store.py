"""Every trajectory of a run, durable before it is trained on, readable while the run goes on.

A group is one immutable Parquet segment, created in one step under a name that holds its sequence
number and its digest. The index beside it is a cache; the ledger of what was trained on is not.
"""

from __future__ import annotations

import hashlib
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import StoreError, UsageError, did_you_mean
from practicum.observe.files import DamagedWarning, create_file, disk_error, remove_unfinished
from practicum.observe.index import Index, SegmentEntry
from practicum.observe.ledger import Ledger
from practicum.observe.segments import (
    TrajectoryRow,
    content_digest,
    decode_rows,
    decode_segment,
    encode_segment,
    trajectory_row,
)
from practicum.types import Outcome, Task, Trajectory
from practicum.verdicts import Group, Verdict

_NAME = re.compile(r"\d{8,}-[0-9a-f]{32}\.parquet")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One stored trajectory with all that belongs to it."""

    step: int | None
    """The step that trained on it, None if none did."""
    task: Task
    trajectory: Trajectory
    verdict: Verdict | None


class TrajectoryStore:
    """Satisfies `protocols.Store`. One writer, any number of readers; any thread may call.

    Example:
        store.append(group); store.commit(0, [group.id]); store.group(group.id) == group
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.folder = folder
        self._read_only = read_only
        self._lock = threading.Lock()
        if not read_only:
            try:
                self._segments.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise disk_error(folder, error) from error
            remove_unfinished(self._segments)
        self._index = Index(folder / "index.sqlite", in_memory=read_only)
        self.ledger = Ledger(folder / "ledger.sqlite", read_only=read_only)
        self._reconcile()

    def append(self, group: Group) -> None:
        """Durable on return. The same group again counts once; of other content the newest.

        Raises StoreError if the disk is full or not writable.
        """
        assert not self._read_only, "this store was opened for reading"
        data, content = encode_segment(group), content_digest(group)
        rows = [trajectory_row(group, trajectory) for trajectory in group.trajectories]
        with self._lock:
            newest = self._index.newest(group.id)
            if newest is not None and newest.content == content:
                return
            name = f"{self._next_sequence:08d}-{_digest(data)}.parquet"
            create_file(self._segments / name, data)
            entry = SegmentEntry(name, self._next_sequence, group.id, content)
            self._next_sequence += 1
            self._index.add(entry, rows)

    def commit(self, step: int, group_ids: Sequence[str]) -> None:
        """The groups that this step trained on, in order. Durable on return.

        Raises StoreError if one was never stored, or was trained by another step.
        """
        with self._lock:
            missing = [name for name in group_ids if self._index.newest(name) is None]
        if missing:
            raise StoreError(
                f"step {step} was trained on groups never stored, such as {missing[0]}"
            )
        self.ledger.commit(step, group_ids)

    def rewind(self, num_steps: int) -> None:
        """Go back to a checkpoint: only the commits of steps 0 .. num_steps - 1 still count."""
        self.ledger.rewind(num_steps)

    def group(self, group_id: str) -> Group:
        """The group as it was appended. Raises UsageError if there is none of this id."""
        with self._lock:
            entry = self._index.newest(group_id)
            if entry is None:
                known = [found.group_id for found in self._index.segments()]
                raise UsageError(f"no group {group_id!r} here.{did_you_mean(group_id, known)}")
        return decode_segment(self._read(entry.name))

    def rows(
        self,
        *,
        domain: str | None = None,
        outcome: Outcome | None = None,
        step: int | None = None,
    ) -> list[TrajectoryRow]:
        """What is known of each trajectory without opening it, in the order of storing."""
        with self._lock:
            rows = self._index.rows(domain=domain, outcome=outcome)
        if step is None:
            return rows
        wanted = set(self.ledger.groups(step) or ())
        return [row for row in rows if row.group_id in wanted]

    def trajectories(
        self,
        *,
        domain: str | None = None,
        outcome: Outcome | None = None,
        step: int | None = None,
    ) -> Iterator[Attempt]:
        """Every matching trajectory, opened one group at a time."""
        steps = self.ledger.steps()
        wanted: dict[str, set[str]] = {}
        for row in self.rows(domain=domain, outcome=outcome, step=step):
            wanted.setdefault(row.group_id, set()).add(row.trajectory_id)
        for group_id, trajectory_ids in wanted.items():
            group = self.group(group_id)
            for trajectory in group.trajectories:
                if trajectory.id in trajectory_ids:
                    verdict = group.verdicts.get(trajectory.id)
                    yield Attempt(steps.get(group_id), group.task, trajectory, verdict)

    def trajectory(self, trajectory_id: str) -> Attempt:
        """One trajectory by its id or by an unambiguous beginning of it. Raises UsageError."""
        with self._lock:
            found = self._index.rows(trajectory_id=trajectory_id) or [
                row for row in self._index.rows() if row.trajectory_id.startswith(trajectory_id)
            ]
            if len({row.trajectory_id for row in found}) != 1:
                known = [row.trajectory_id for row in found or self._index.rows()][:1000]
                reason = "several trajectories begin with" if found else "no trajectory"
                hint = "" if found else did_you_mean(trajectory_id, known)
                raise UsageError(f"{reason} {trajectory_id!r} in {self.folder}.{hint}")
        group = self.group(found[0].group_id)
        (trajectory,) = (t for t in group.trajectories if t.id == found[0].trajectory_id)
        steps = self.ledger.steps()
        verdict = group.verdicts.get(trajectory.id)
        return Attempt(steps.get(group.id), group.task, trajectory, verdict)

    def superseded(self) -> list[SegmentEntry]:
        """Older versions of groups that were repeated with another result: kept, not counted."""
        with self._lock:
            return self._index.superseded()

    def rebuild_index(self) -> None:
        """Throw the cache away and read every segment again. Damaged ones are set aside by name."""
        with self._lock:
            self._index.clear()
        self._reconcile()

    def digest(self) -> str:
        """sha256 over the ledger and the content of all that it names; timings do not enter.

        Equal for a run and for its repetition, interrupted and resumed or not.
        """
        total = hashlib.sha256()
        with self._lock:
            newest = {entry.group_id: entry.content for entry in self._index.segments()}
        for group_id, step in self.ledger.steps().items():
            total.update(f"{step} {group_id} {newest.get(group_id)}\n".encode())
        return total.hexdigest()

    def close(self) -> None:
        with self._lock:
            self._index.close()
        self.ledger.close()

    @property
    def _segments(self) -> Path:
        return self.folder / "segments"

    def _reconcile(self) -> None:
        """Bring the index up to the segments: a kill may fall between the two."""
        on_disk = sorted(
            path.name for path in self._segments.glob("*.parquet") if _NAME.fullmatch(path.name)
        )
        with self._lock:
            if not {entry.name for entry in self._index.segments()} <= set(on_disk):
                self._index.clear()
            indexed = {entry.name for entry in self._index.segments()}
            for name in on_disk:
                if name not in indexed:
                    self._index_segment(name)
            self._next_sequence = 1 + max((_sequence(name) for name in on_disk), default=-1)

    def _index_segment(self, name: str) -> None:
        try:
            content, rows = decode_rows(self._read(name))
        except StoreError as error:
            if not self._read_only:
                damaged = self._segments / name
                damaged.rename(damaged.with_suffix(".damaged"))
            warnings.warn(f"{error}; it was set aside", DamagedWarning, stacklevel=4)
            return
        self._index.add(SegmentEntry(name, _sequence(name), rows[0].group_id, content), rows)

    def _read(self, name: str) -> bytes:
        path = self._segments / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read the segment {path}: {error.strerror}") from error
        if _digest(data) != name.partition("-")[2].removesuffix(".parquet"):
            raise StoreError(f"the segment {path} does not match the digest in its name")
        return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _sequence(name: str) -> int:
    return int(name.partition("-")[0])
