"""Where pages wait outside the pool: in host memory, or in a file.

A file that nobody else sees: it is removed from its folder at once and lives as long as it is open.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor

from practicum.errors import InfraError


class Swap:
    """Contents of pages by slot. All have the same shape and dtype."""

    def __init__(self, folder: Path | None = None) -> None:
        self._kept: dict[int, Tensor] = {}
        self._file = None if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        if self._file is not None:
            weakref.finalize(self, self._file.close)

    def save(self, slot: int, contents: Tensor) -> None:
        """Keep a copy of the contents. Raises InfraError if the disk is full."""
        if self._file is None:
            self._kept[slot] = contents.clone()
            return
        data = contents.contiguous().flatten().view(torch.uint8).numpy().data
        try:
            written = os.pwrite(self._file.fileno(), data, slot * len(data))
        except OSError as error:
            raise InfraError(f"cannot swap keys and values to disk: {error.strerror}") from error
        if written < len(data):
            raise InfraError("cannot swap keys and values to disk: it is full")

    def load(self, slot: int, into: Tensor) -> None:
        """Bring the contents back; they stay in the slot."""
        if self._file is None:
            into.copy_(self._kept[slot])
            return
        data = bytearray(into.nbytes)
        os.preadv(self._file.fileno(), [data], slot * len(data))
        into.copy_(torch.frombuffer(data, dtype=into.dtype).view(into.shape))
