"""Keys and values in pages, and the one attention that reads them.

A page holds 32 positions, aligned to absolute position, of all key-value heads of one layer.
Prefill, decode, scoring and training attend through the same function in the same fixed blocks of
128 positions: a query's result depends on its own keys alone, so chunking, batching, sharing pages
or moving them changes no bit. `plain_attend` defines it; a compiled kernel runs where there is one.

Layout of one layer's pages, [P, 2, K, 32 * C]: keys as [2 halves, C/2, 16 tokens, 2], then values
as [16 pairs of tokens, C, 2], which is how matrix units read them.

Shapes: T tokens, H query heads, K key-value heads, G = H / K, C head size, P pages, S sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.policy.model.far_pages import Far
from practicum.policy.model.native import kernels
from practicum.policy.model.ops import softcap, widen
from practicum.policy.model.shape import AttentionRule, Shape

PAGE = 32
"""Positions in a page."""
BLOCK = 128
"""Keys that are met together: one maximum, one sum."""
HALF = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """Which keys every token of a batch reads."""

    positions: Tensor
    """int64 [T]: a token sees its own position and those before, as its layer's rule allows."""
    tables: Tensor
    """int32 [E]: page numbers of all sequences, one after the other"""
    starts: Tensor
    """int64 [T]: where the table of the token's sequence begins. Neighbours that share a table are
    worked on together."""

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


def new_pages(shape: Shape, num_pages: int, dtype: torch.dtype) -> Tensor:
    """One layer's pages. Zeros: what was never written is read with weight 0 and must be finite."""
    return torch.zeros(num_pages, 2, shape.num_kv_heads, PAGE * shape.head_size, dtype=dtype)


def put(
    pages: Tensor, key_TKC: Tensor, value_TKC: Tensor, slots: Tensor, tokens: Tensor | None = None
) -> None:
    """Copy keys and values into slots: those of all tokens, or of `tokens` (repeats allowed)."""
    if kernels.serves(pages.dtype, key_TKC.shape[-1]):
        sources = torch.arange(len(slots)) if tokens is None else tokens
        kernels.put(key_TKC, value_TKC, pages, sources, slots)
        return
    if tokens is not None:
        key_TKC, value_TKC = key_TKC[tokens], value_TKC[tokens]
    page, place = slots // PAGE, slots % PAGE
    key_view, value_view = _views(pages, key_TKC.shape[-1])
    key_view[page, :, place // HALF, :, place % HALF] = key_TKC.unflatten(-1, (-1, 2))
    value_view[page, :, place // 2, :, place % 2] = value_TKC


def attend(
    pages: Tensor,
    query_THC: Tensor,
    reading: Reading,
    rule: AttentionRule,
    far: Far | None = None,
) -> Tensor:
    """What every query reads, [T, H, C] in the queries' dtype."""
    if not kernels.serves(pages.dtype, query_THC.shape[-1]) or query_THC.shape[-1] > 256:
        return plain_attend(pages, query_THC, reading, rule, far)
    how = (rule.scale, rule.softcap or 0.0, rule.window or 0, rule.sinks)
    where = (reading.positions, reading.tables, reading.starts)
    if far is None:
        return kernels.attend(query_THC, pages, *where, *how)
    recent, bits, top_pages = far.recent, far.bits, far.top_pages
    return kernels.attend_far(
        query_THC, pages, *where, how, recent, bits, far.coded, far.tables, far.bounds, top_pages
    )


def plain_attend(
    pages: Tensor,
    query_THC: Tensor,
    reading: Reading,
    rule: AttentionRule,
    far: Far | None = None,
) -> Tensor:
    """The definition: tokens of one sequence together, sequences of one token in one batch."""
    _, counts = reading.starts.unique_consecutive(return_counts=True)
    ends = counts.cumsum(0)
    out = torch.empty_like(query_THC)
    single = counts == 1
    if single.any():
        rows = ends[single] - 1
        out[rows] = _attend_rows(pages, query_THC, reading, rule, far, rows[:, None])
    for end, count in zip(ends[~single].tolist(), counts[~single].tolist()):
        rows = torch.arange(end - count, end)
        out[rows] = _attend_rows(pages, query_THC, reading, rule, far, rows[None]).flatten(0, 1)
    return out


def _attend_rows(
    pages: Tensor,
    query_THC: Tensor,
    reading: Reading,
    rule: AttentionRule,
    far: Far | None,
    rows_SQ: Tensor,
) -> Tensor:
    """[S, Q, H, C] for Q tokens of each of S sequences; [S, H, C] where Q is 1."""
    num_queries = rows_SQ.shape[1]
    num_heads = query_THC.shape[1]
    num_kv = pages.shape[2]
    positions_SQ = reading.positions[rows_SQ]
    query = widen(query_THC)[rows_SQ].unflatten(2, (num_kv, -1)).transpose(1, 2).flatten(2, 3)
    # Products of one to three rows take another path in some libraries: pad to four.
    padding = max(0, 4 - query.shape[2])
    query = torch.nn.functional.pad(query, (0, 0, 0, padding))  # [S, K, Q * G, C]
    positions = positions_SQ.repeat_interleave(num_heads // num_kv, dim=1)
    positions = torch.nn.functional.pad(positions, (0, padding))[:, None, :, None]
    peak = torch.full(query.shape[:-1], -torch.inf, dtype=query.dtype)
    total = torch.zeros_like(peak)
    values = torch.zeros_like(query)
    chosen = None
    if far is not None and far.top_pages:
        group = num_heads // num_kv
        whole = query[:, :, : num_queries * group], positions[:, :, : num_queries * group]
        chosen = far.chosen(*whole, reading.starts[rows_SQ[:, 0]], group)
        chosen = torch.nn.functional.pad(chosen, (0, 0, 0, padding))
    for key, value, seen in _blocks(pages, reading, rule, far, rows_SQ, positions, chosen):
        scores = query @ key.transpose(-1, -2) * rule.scale
        if rule.softcap is not None:
            scores = softcap(scores, rule.softcap)
        scores = scores.masked_fill(~seen, -torch.inf)
        peak_here = scores.amax(-1)
        higher = torch.maximum(peak, peak_here)
        base = torch.where(higher == -torch.inf, 0.0, higher)
        weights = (scores - base[..., None]).exp()
        kept = (peak - base).exp()
        total = total * kept + weights.sum(-1)
        rounded = widen(weights.to(pages.dtype))
        values = values * kept[..., None] + rounded @ value
        peak = higher
    out = values / total[..., None]
    out = out[:, :, : num_queries * num_heads // num_kv].unflatten(2, (num_queries, -1))
    out = out.transpose(1, 2).flatten(2, 3).to(query_THC.dtype)
    return out.squeeze(1) if num_queries == 1 else out


def _blocks(
    pages: Tensor,
    reading: Reading,
    rule: AttentionRule,
    far: Far | None,
    rows_SQ: Tensor,
    positions: Tensor,
    chosen: Tensor | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Keys and values [S, K, 128, C] of block after block, and which query sees which key.

    A block is met twice if it is far for some and near for others.
    """
    last = reading.positions[rows_SQ].amax(1, keepdim=True) // PAGE
    for first in range(0, int(positions.max()) + 1, BLOCK):
        numbers = torch.arange(first // PAGE, (first + BLOCK) // PAGE)
        # Pages past the end repeat the last: they are never seen.
        places = reading.starts[rows_SQ[:, :1]] + torch.minimum(numbers, last)
        seen = _sees(rule, positions, first)
        is_far = None if far is None else first < far.end(positions)
        if far is not None and is_far is not None and (seen & is_far).any():
            seen_far = seen & is_far
            if chosen is not None:
                seen_far = seen_far & chosen[..., numbers].repeat_interleave(PAGE, dim=-1)
            yield *_block(pages, reading, far, places), seen_far
            seen = seen & ~is_far
        if is_far is None or seen.any():
            yield *_block(pages, reading, None, places), seen


def _block(
    pages: Tensor, reading: Reading, far: Far | None, places: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys and values [S, K, 128, C] of four pages each, at least float32."""
    head_size = pages.shape[-1] // PAGE
    if far is not None and far.bits < 16:
        numbers = far.tables[places].to(torch.int64).flatten()
        some = far.pages(numbers, pages.dtype, head_size)
    else:
        some = pages[reading.tables[places].to(torch.int64).flatten()]
    keys, values = _views(some, head_size)
    key = keys.permute(0, 1, 2, 4, 3, 5).flatten(4).flatten(2, 3)  # [S * 4, K, 32, C]
    value = values.transpose(-1, -2).flatten(2, 3)
    return tuple(
        widen(x).unflatten(0, places.shape).transpose(1, 2).flatten(2, 3) for x in (key, value)
    )  # pyright: ignore[reportReturnType]


def _sees(rule: AttentionRule, positions: Tensor, first: int) -> Tensor:
    """Whether each query sees each of the 128 keys from `first`."""
    keys = torch.arange(first, first + BLOCK)
    seen = keys <= positions
    if rule.window is not None:
        seen &= (keys > positions - rule.window) | (keys < rule.sinks)
    return seen


def _views(pages: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """Keys [P, K, 2, C/2, 16, 2] and values [P, K, 16, C, 2] of pages."""
    keys = pages[:, 0].unflatten(-1, (2, head_size // 2, HALF, 2))
    values = pages[:, 1].unflatten(-1, (HALF, head_size, 2))
    return keys, values
