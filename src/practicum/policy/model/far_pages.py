"""How pages that lie far before a query are read: coded in few bits, or only those that matter.

The one thing to know: what is far is decided by the query's position alone. A query reads its own
block of 128 positions and `recent` positions before that block exactly, and everything earlier from
codes, also if the exact page is still there. So chunking, batching and preemption change no bit.

Of far pages a query may read only the `top_pages` whose keys could score highest: no key of a page
scores above the sum over channels of max(q * lowest, q * highest). All query heads of a key-value
head read the same ones, and the first page always. (Quest, Tang et al. 2024, 2406.10774)

Shapes: S sequences of Q tokens, K key-value heads of G query heads each, C head size, N pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.policy.model.coded_pages import PAGE, decode
from practicum.policy.model.products import widen

BLOCK = 128


@dataclass(frozen=True, slots=True)
class Far:
    """One layer's far pages, and how the tokens of a batch read them."""

    tables: Tensor
    """int32 [E]: page numbers in `coded` and `bounds`; the same places as `Reading.tables`"""
    recent: int
    """Positions before a query's own block that are read exactly; a multiple of 128"""
    bits: int = 16
    """4 or 8; with 16 far pages are read from where the recent ones are"""
    coded: Tensor | None = None
    """uint8 [P, K, bytes]"""
    bounds: Tensor | None = None
    """[P, K, C, 2]: lowest and highest key of every channel"""
    top_pages: int = 0
    """So many far pages are read at most; 0 is all"""

    def __post_init__(self) -> None:
        assert self.recent >= 0
        assert self.recent % BLOCK == 0
        assert (self.coded is None) == (self.bits == 16)
        assert self.bounds is not None or not self.top_pages

    def end(self, positions: Tensor) -> Tensor:
        """The first position that a query reads exactly, a multiple of 128."""
        return far_end(positions, self.recent)

    def pages(self, numbers: Tensor, dtype: torch.dtype, head_size: int) -> Tensor:
        """Coded pages [n, 2, K, 32 * C] as attention reads them."""
        assert self.coded is not None
        return decode(self.coded[numbers], head_size, self.bits, dtype)

    def chosen(self, query: Tensor, positions: Tensor, starts_S: Tensor, group: int) -> Tensor:
        """bool [S, K, Q * G, N]: which of the first N pages of its sequence each query reads.

        `query` is [S, K, Q * G, C], `positions` [S, 1, Q * G, 1].
        """
        ends = self.end(positions) // PAGE
        num_pages = int(ends.max())
        assert self.bounds is not None
        places = (starts_S[:, None] + torch.arange(num_pages)).clamp_max(len(self.tables) - 1)
        bounds = widen(self.bounds[self.tables[places].to(torch.int64)])  # [S, N, K, C, 2]
        low, high = bounds.permute(4, 0, 2, 3, 1)  # [S, K, C, N] each
        score = query.clamp_min(0) @ high + query.clamp_max(0) @ low  # [S, K, Q * G, N]
        score = score.unflatten(2, (-1, group)).amax(3).repeat_interleave(group, dim=2)
        numbers = torch.arange(num_pages)
        score = score.masked_fill(numbers >= ends, -torch.inf)
        score = score.masked_fill(numbers == 0, torch.inf)
        # The later one of equals first, so that ties are broken alike everywhere.
        order = score.flip(-1).sort(dim=-1, descending=True, stable=True).indices
        rank = torch.empty_like(order).scatter_(-1, order, numbers.expand_as(order)).flip(-1)
        return rank < self.top_pages


def far_end(positions: Tensor, recent: int) -> Tensor:
    """Where what a query at each position reads exactly begins."""
    return (positions // BLOCK * BLOCK - recent).clamp_min(0)
