"""What the host asks of the zygote: one sandbox."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Order(NamedTuple):
    """One sandbox to be made. Crosses the wire as a JSON object of these fields."""

    name: str
    """Unique within the pool."""
    workdir: str
    """Absolute and normal; a private writable folder is mounted there."""
    memory_mb: int
    storage_mb: int
    pids: int
    cpus: float
    network: Literal["none", "loopback"]
