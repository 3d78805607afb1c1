"""The store's index in SQLite: a cache of the segments, never the only copy of anything.

Of several segments of one group (a resumed run repeats an attempt) the one with the highest
sequence number counts. The others stay on record, and on disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from practicum.errors import StoreError
from practicum.observe.segments import TrajectoryRow
from practicum.observe.snapshot import snapshot

INDEX_FORMAT = 1
"""A cache of another format is thrown away and rebuilt."""

_COLUMNS = ", ".join(field.name for field in fields(TrajectoryRow))
_PLACES = ", ".join("?" for _ in fields(TrajectoryRow))
_SCHEMA = f"""
create table if not exists segments (
    name text primary key,
    sequence integer not null,
    group_id text not null,
    content text not null
);
create index if not exists segments_by_group on segments (group_id, sequence);
create table if not exists trajectories ({_COLUMNS}, primary key (group_id, sample, trajectory_id));
create index if not exists by_id on trajectories (trajectory_id);
create index if not exists by_domain on trajectories (domain, outcome);
"""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment file: its name begins with its sequence number."""

    name: str
    sequence: int
    group_id: str
    content: str
    """Digest of the group without its timings: equal for an exact repetition."""


class Index:
    """Not thread-safe: the store calls it under its lock."""

    def __init__(self, path: Path, *, in_memory: bool = False) -> None:
        self._path = path
        try:
            self._connection = _open(path, in_memory)
        except sqlite3.DatabaseError:  # a torn cache is no loss
            if in_memory:
                self._connection = _prepare(sqlite3.connect(":memory:", check_same_thread=False))
            else:
                _delete(path)
                self._connection = _open(path, in_memory)

    def add(self, entry: SegmentEntry, rows: Sequence[TrajectoryRow]) -> None:
        """Record a segment; its rows replace those of an older segment of the same group."""
        with self._transaction() as connection:
            newest = self.newest(entry.group_id)
            values = (entry.name, entry.sequence, entry.group_id, entry.content)
            connection.execute("insert or ignore into segments values (?, ?, ?, ?)", values)
            if newest and (newest.sequence, newest.name) > (entry.sequence, entry.name):
                return
            connection.execute("delete from trajectories where group_id = ?", (entry.group_id,))
            connection.executemany(
                f"insert into trajectories values ({_PLACES})", [astuple(row) for row in rows]
            )

    def newest(self, group_id: str) -> SegmentEntry | None:
        """The segment that counts for a group."""
        found = self._connection.execute(
            "select * from segments where group_id = ? order by sequence desc, name desc limit 1",
            (group_id,),
        ).fetchone()
        return SegmentEntry(*found) if found else None

    def segments(self) -> list[SegmentEntry]:
        """Every segment, oldest first."""
        query = "select * from segments order by sequence, name"
        return [SegmentEntry(*row) for row in self._connection.execute(query)]

    def superseded(self) -> list[SegmentEntry]:
        """Segments that a later one of the same group replaced with other content."""
        newest = {entry.group_id: entry for entry in self.segments()}
        return [
            entry for entry in self.segments() if entry.content != newest[entry.group_id].content
        ]

    def rows(
        self,
        domain: str | None = None,
        outcome: str | None = None,
        group_id: str | None = None,
        trajectory_id: str | None = None,
    ) -> list[TrajectoryRow]:
        """The trajectories that count, in the order they were stored, narrowed by what is given."""
        wanted = {
            "t.domain": domain,
            "t.outcome": outcome,
            "t.group_id": group_id,
            "t.trajectory_id": trajectory_id,
        }
        given = {column: value for column, value in wanted.items() if value is not None}
        where = " and ".join(f"{column} = ?" for column in given) or "true"
        query = (
            "select t.* from trajectories t join (select group_id, max(sequence) as position "
            f"from segments group by group_id) using (group_id) where {where} "
            "order by position, sample, trajectory_id"
        )
        found = self._connection.execute(query, tuple(given.values()))
        return [TrajectoryRow(*row) for row in found]

    def clear(self) -> None:
        with self._transaction() as connection:
            connection.execute("delete from segments")
            connection.execute("delete from trajectories")

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        try:
            with self._connection as connection:
                yield connection
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot write the index {self._path}: {error}; check the disk, then resume the "
                "run (no trajectory is lost, the index is rebuilt from the segments)"
            ) from error

    def close(self) -> None:
        self._connection.close()


def _open(path: Path, in_memory: bool) -> sqlite3.Connection:
    if in_memory:
        connection = snapshot(path)
    else:
        connection = sqlite3.connect(path, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
    return _prepare(connection)


def _prepare(connection: sqlite3.Connection) -> sqlite3.Connection:
    (found,) = connection.execute("pragma user_version").fetchone()
    if found not in (0, INDEX_FORMAT):
        raise sqlite3.DatabaseError(f"index format {found}")
    connection.executescript(_SCHEMA)
    connection.execute(f"pragma user_version = {INDEX_FORMAT}")
    return connection


def _delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
