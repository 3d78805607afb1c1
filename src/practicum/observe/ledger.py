"""Which step consumed which groups. Unlike the store's index, this is truth and not a cache.

A group is trained on by one step of the living lineage, never by two. Going back to a checkpoint
forgets nothing: the commits of the abandoned steps stay, marked as rewound.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from practicum.errors import StoreError, UsageError
from practicum.observe.snapshot import snapshot

LEDGER_FORMAT = 1

_SCHEMA = """
create table if not exists steps (
    id integer primary key,             -- in the order of commits, over all lineages
    step integer not null,
    rewound integer not null default 0  -- 1 once a resume went back before this step
);
create unique index if not exists one_living_commit on steps (step) where rewound = 0;
create table if not exists consumed (
    step_id integer not null references steps (id),
    position integer not null,
    group_id text not null,
    primary key (step_id, position)
);
create index if not exists by_group on consumed (group_id);
"""


class Ledger:
    """An SQLite table, synchronous to the disk. Any thread may call any method.

    Example:
        ledger.commit(0, ["g1", "g2"]); ledger.groups(0) == ["g1", "g2"]
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._lock = threading.Lock()
        try:
            self._connection = snapshot(path) if read_only else _writable(path)
            (found,) = self._connection.execute("pragma user_version").fetchone()
            if found not in (0, LEDGER_FORMAT):
                raise UsageError(
                    f"{path} has ledger format {found}, this version reads {LEDGER_FORMAT}; "
                    "use the version of practicum that wrote it"
                )
            self._connection.executescript(_SCHEMA)
            self._connection.execute(f"pragma user_version = {LEDGER_FORMAT}")
        except sqlite3.Error as error:
            raise StoreError(f"cannot open the ledger {path}: {error}") from error

    def commit(self, step: int, group_ids: Sequence[str]) -> None:
        """Durable on return; repeating the same commit changes nothing.

        Raises StoreError if the step was committed with other groups, or a group by another step.
        """
        if len(set(group_ids)) != len(group_ids):
            raise StoreError(f"step {step} names a group twice; a group is trained on once")
        with self._transaction() as connection:
            if (known := self._living(step)) is not None:
                if known != list(group_ids):
                    raise StoreError(
                        f"step {step} was already committed with other groups; two processes may "
                        "be writing this run, or it was resumed without going back to a checkpoint"
                    )
                return
            for group_id in group_ids:
                if (other := self._step_of(group_id)) is not None:
                    raise StoreError(
                        f"group {group_id} of step {step} was already trained on by step {other}"
                    )
            row = connection.execute("insert into steps (step) values (?)", (step,))
            connection.executemany(
                "insert into consumed values (?, ?, ?)",
                [(row.lastrowid, position, name) for position, name in enumerate(group_ids)],
            )

    def rewind(self, num_steps: int) -> None:
        """Keep the commits of steps 0 .. num_steps - 1; mark all later ones as rewound."""
        with self._transaction() as connection:
            connection.execute("update steps set rewound = 1 where step >= ?", (num_steps,))

    def groups(self, step: int) -> list[str] | None:
        """The groups of a step in the order of training, None if it was not committed."""
        with self._lock:
            return self._living(step)

    def steps(self) -> dict[str, int]:
        """Group id -> the step that trained on it."""
        query = (
            "select group_id, step from consumed join steps on id = step_id "
            "where not rewound order by step, position"
        )
        with self._lock:
            return dict(self._connection.execute(query).fetchall())

    def rewound(self) -> list[tuple[int, str]]:
        """(step, group id) of every abandoned commit, in the order they were made."""
        query = (
            "select step, group_id from consumed join steps on id = step_id "
            "where rewound order by id, position"
        )
        with self._lock:
            return list(self._connection.execute(query).fetchall())

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("begin immediate")
                with self._connection as connection:
                    yield connection
            except sqlite3.Error as error:
                raise StoreError(
                    f"cannot write the ledger: {error}; check the disk, then resume the run"
                ) from error

    def _living(self, step: int) -> list[str] | None:
        found = self._connection.execute(
            "select id from steps where step = ? and not rewound", (step,)
        ).fetchone()
        if found is None:
            return None
        rows = self._connection.execute(
            "select group_id from consumed where step_id = ? order by position", found
        )
        return [group_id for (group_id,) in rows]

    def _step_of(self, group_id: str) -> int | None:
        found = self._connection.execute(
            "select step from consumed join steps on id = step_id "
            "where group_id = ? and not rewound",
            (group_id,),
        ).fetchone()
        return found[0] if found else None


def _writable(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    return connection
