"""An SQLite file as it stands now: readers neither wait for its writer nor change anything."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def snapshot(path: Path) -> sqlite3.Connection:
    """A copy in memory, for any thread; empty if there is no file."""
    memory = sqlite3.connect(":memory:", check_same_thread=False)
    if path.exists():
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            source.backup(memory)
        finally:
            source.close()
    return memory
