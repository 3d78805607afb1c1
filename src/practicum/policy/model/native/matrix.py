"""The form of quantised weights, which kernels and their plain twins read alike.

int8: rows spread in blocks of 64, one scale per row; a product does the same to each token of its
other side. int4: 16 evenly spaced levels for every 64 weights of a row; the other side stays
bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

STEP = 64
"""Rows of int8 are padded with zeros to a multiple of this."""
SHARERS = 64
"""Weights of an int4 row that share their levels."""

Storage = Literal["int8", "int4"]


@dataclass(frozen=True, slots=True)
class Quantised:
    """A copy of a bfloat16 matrix [E, D] that a matrix product reads in its place."""

    kind: Storage
    values: Tensor
    """int8 [E, D padded]; or uint8 [E, D / 2], where byte `32 g + i` holds the level of weight
    `64 g + i` in its low half, and of weight `64 g + 32 + i` in its high half"""
    scales: Tensor
    """float32 [E]; or bfloat16 [E, D / 64, 2], the lowest level and the distance of levels"""
    shape: torch.Size
    """Of the matrix it stands for."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations that it is multiplied with."""
        return torch.bfloat16

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes


def empty(kind: Storage, num_rows: int, size: int) -> Quantised:
    """Room for a matrix of this size."""
    shape = torch.Size((num_rows, size))
    if kind == "int8":
        values = torch.empty((num_rows, size + -size % STEP), dtype=torch.int8)
        return Quantised(kind, values, torch.empty(num_rows), shape)
    assert size % SHARERS == 0, f"int4 needs rows of a multiple of {SHARERS}, not {size}"
    values = torch.empty((num_rows, size // 2), dtype=torch.uint8)
    grid = torch.empty((num_rows, size // SHARERS, 2), dtype=torch.bfloat16)
    return Quantised(kind, values, grid, shape)
