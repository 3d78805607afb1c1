"""Which keys every token of a batch reads.

The one thing to know: how many pages a token's keys are padded to is decided by its position alone.
Tokens that read equally many are worked on together without padding one another, and a token meets
the same products in every batch and chunk.

Shapes: T tokens, S stretches of Q neighbouring tokens, N pages that each of them reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from practicum.policy.model.page_layout import PAGE

LONGEST = 128
"""Tokens of one stretch"""

Arrays = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Stretches:
    """S times Q tokens that read the same pages: neighbours in a sequence, or what follows it."""

    rows: Tensor
    """int64 [S, Q]: which tokens"""
    positions: Tensor
    """int64 [S, Q]"""
    numbers: Tensor
    """int64 [N]: pages counted from the first that is read"""
    starts: Tensor
    """int64 [S]: where the sequences' tables begin"""
    places: Tensor
    """int64 [S, N]: where the pages stand in the tables"""
    pages: Tensor
    """int64 [S, N]"""
    heads: Tensor
    """int64 [2 * S * K * N]: the same, of all keys and then all values, counted head by head"""
    bias: Tensor
    """float32 [S, 1, Q * G, 32 * N], or [S, 1, 1, 32 * N] if it is the same for all queries: 0 for
    what a query sees, else minus infinity"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Positions and page tables."""

    positions: Tensor
    """int64 [T]: a token sees its own position and those before, as its layer's rule allows."""
    tables: Tensor
    """int32 [E]: page numbers of all sequences, one after the other"""
    starts: Tensor
    """int64 [T]: where the table of the token's sequence begins. Neighbours that share a table are
    worked on together."""
    _kept: dict[tuple[int | None, ...], tuple[tuple[Stretches, ...], Stretches | None]] = field(
        default_factory=dict[
            tuple[int | None, ...], tuple[tuple[Stretches, ...], Stretches | None]
        ],
        init=False,
        repr=False,
        compare=False,
    )

    @staticmethod
    def of(sequences: Sequence[tuple[Sequence[int], int, int]]) -> Reading:
        """For each sequence its page table, its first new position, and how many are new."""
        tables: list[int] = []
        starts: list[int] = []
        positions: list[int] = []
        for table, first, count in sequences:
            starts += [len(tables)] * count
            positions += range(first, first + count)
            tables += table
        return Reading(
            torch.tensor(positions, dtype=torch.int64),
            torch.tensor(tables, dtype=torch.int32),
            torch.tensor(starts, dtype=torch.int64),
        )

    def slots(self) -> Tensor:
        """int64 [T]: where each token's own key and value belong, page * 32 + place in it."""
        pages = self.tables[self.starts + self.positions // PAGE].to(torch.int64)
        return pages * PAGE + self.positions % PAGE

    def stretches(
        self, window: int | None, sinks: int, num_kv: int, group: int, share: bool = False
    ) -> tuple[tuple[Stretches, ...], Stretches | None]:
        """The tokens in groups. Kept: layers of the same window ask again.

        With `share`, pages that last tokens of several sequences read stand apart in the second
        result, and are read once.
        """
        key = (window, sinks, num_kv, group, share)
        if key not in self._kept:
            heads = num_kv, group
            positions, starts = self.positions.numpy(), self.starts.numpy()
            families = _families(self) if share and window is None else []
            skipped = np.zeros_like(positions)
            for rows, num_shared in families:
                skipped[rows] = num_shared
            groups = _group(positions, starts, skipped)
            own = tuple(
                _stretches(self, rows, skipped[rows[:, 0]], end, window, sinks, *heads)
                for rows, end in groups
            )
            self._kept[key] = own, _shared(self, families, num_kv) if families else None
        return self._kept[key]


def _unit(positions: Arrays) -> Arrays:
    """What a position is rounded up to a multiple of: an eighth to a quarter of it, 32 to 128."""
    _, exponents = np.frexp(positions.astype(np.float64))
    return np.clip(1 << np.maximum(exponents - 3, 0).astype(np.int64), PAGE, LONGEST)


def _group(positions: Arrays, starts: Arrays, skipped: Arrays) -> list[tuple[Arrays, int]]:
    """Rows [S, Q], and how many positions after the skipped pages all their keys are in."""
    own = positions - skipped * PAGE
    unit = _unit(own)
    ends = (own // unit + 1) * unit
    begins = np.flatnonzero((np.diff(starts, prepend=-1) != 0) | (np.diff(ends, prepend=-1) != 0))
    counts = np.diff(begins, append=len(positions))
    kinds: dict[tuple[int, int], list[int]] = {}
    for begin, count, end in zip(begins.tolist(), counts.tolist(), ends[begins].tolist()):
        kinds.setdefault((count, end), []).append(begin)
    return [
        (np.array(firsts)[:, None] + np.arange(count), end)
        for (count, end), firsts in kinds.items()
    ]


def _families(reading: Reading) -> list[tuple[list[int], int]]:
    """Single tokens of sequences that begin with the same pages, and how many of these pages.

    Each belongs where most of its pages are shared.
    """
    positions, starts = reading.positions.numpy(), reading.starts.numpy()
    bounds = np.diff(starts, prepend=-1, append=-1) != 0
    single = np.flatnonzero(bounds[:-1] & bounds[1:]).tolist()
    tables = reading.tables.tolist()
    whole = [
        (tables[start : start + position // PAGE], row)
        for row, start, position in zip(single, starts[single].tolist(), positions[single].tolist())
    ]
    whole.sort()
    alike = [0, *(_alike(one, other) for (one, _), (other, _) in pairwise(whole)), 0]
    families: list[tuple[list[int], int]] = []
    for index, (_, row) in enumerate(whole):
        most = max(alike[index], alike[index + 1])
        if families and alike[index] == most == families[-1][1]:
            families[-1][0].append(row)
        else:
            families.append(([row], most))
    return [(rows, count) for rows, count in families if count and len(rows) > 1]


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _shared(reading: Reading, families: list[tuple[list[int], int]], num_kv: int) -> Stretches:
    """A family is a stretch; a row in free places repeats one of it."""
    width = max(len(rows) for rows, _ in families)
    rows = torch.tensor([rows + rows[:1] * (width - len(rows)) for rows, _ in families])
    counts = torch.tensor([count for _, count in families])
    numbers = torch.arange(int(counts.max()))
    starts = reading.starts[rows[:, 0]]
    places = starts[:, None] + torch.minimum(numbers, counts[:, None] - 1)
    seen = (numbers < counts[:, None]).repeat_interleave(PAGE, dim=1)[:, None]
    return _with_pages(reading, rows, numbers, starts, places, seen, num_kv)


def _stretches(
    reading: Reading,
    rows_SQ: Arrays,
    skipped_S: Arrays,
    end: int,
    window: int | None,
    sinks: int,
    num_kv: int,
    group: int,
) -> Stretches:
    rows, skipped = torch.from_numpy(rows_SQ), torch.from_numpy(skipped_S)
    starts = reading.starts[rows[:, 0]] + skipped
    positions = reading.positions[rows] - skipped[:, None] * PAGE
    numbers = torch.arange(end // PAGE)
    if window is not None:
        # From where the earliest query with this end could look, not where one of these does.
        earliest = end - int(_unit(np.array(end - 1))) - window + 1
        numbers = numbers[((numbers + 1) * PAGE > earliest) | (numbers * PAGE < sinks)]
    # Pages past the last of a table repeat it: they are never seen.
    places = starts[:, None] + torch.minimum(numbers, positions.amax(1, keepdim=True) // PAGE)
    keys = (numbers[:, None] * PAGE + torch.arange(PAGE)).flatten()
    seen = keys <= positions[..., None]
    if window is not None:
        seen &= (keys > positions[..., None] - window) | (keys < sinks)
    if rows.shape[1] > 1:
        seen = seen.repeat_interleave(group, dim=1)
    return _with_pages(reading, rows, numbers, starts, places, seen, num_kv)


def _with_pages(
    reading: Reading,
    rows: Tensor,
    numbers: Tensor,
    starts: Tensor,
    places: Tensor,
    seen: Tensor,
    num_kv: int,
) -> Stretches:
    pages = reading.tables[places].to(torch.int64)
    heads = pages[:, None] * (2 * num_kv) + torch.arange(2 * num_kv).view(2, 1, num_kv, 1)
    bias = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None]
    positions = reading.positions[rows]
    return Stretches(rows, positions, numbers, starts, places, pages, heads.flatten(), bias)
