"""Keys and values in pages, and the one attention that reads them.

A page holds 32 positions, aligned to absolute position, of all key-value heads of one layer.
Prefill, decode, scoring and training attend through the same function: a query's result depends on
its own keys alone, so chunking, batching, sharing pages or moving them changes no bit.
`plain_attend` defines it; a compiled kernel runs where there is one, in fixed blocks of 128 keys.

Shapes: T tokens, H query heads, K key-value heads, C head size, P pages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from practicum.policy.model.far_pages import Far
from practicum.policy.model.native import kernels
from practicum.policy.model.page_layout import PAGE, interleaved
from practicum.policy.model.plain_attention import plain_attend
from practicum.policy.model.reading import Reading
from practicum.policy.model.shape import AttentionRule, Shape

__all__ = ["LONGEST", "PAGE", "Reading", "attend", "new_pages", "plain_attend", "put"]

LONGEST = 2**31 - 1
"""Positions are below this, so a window of so many tokens is none."""


def new_pages(shape: Shape, num_pages: int, dtype: torch.dtype) -> Tensor:
    """One layer's pages. Zeros: what was never written is read with weight 0 and must be finite."""
    return torch.zeros(num_pages, 2, shape.num_kv_heads, PAGE * shape.head_size, dtype=dtype)


def put(
    pages: Tensor, key_TKC: Tensor, value_TKC: Tensor, slots: Tensor, tokens: Tensor | None = None
) -> None:
    """Copy keys and values into slots: those of all tokens, or of `tokens` (repeats allowed)."""
    if interleaved(pages.dtype, key_TKC.shape[-1]):
        sources = torch.arange(len(slots)) if tokens is None else tokens
        kernels.put(key_TKC, value_TKC, pages, sources, slots)
        return
    both = torch.cat((key_TKC, value_TKC), dim=1)
    heads = torch.arange(both.shape[1]) * PAGE
    places = slots // PAGE * (PAGE * len(heads)) + slots % PAGE
    rows = pages.view(-1, both.shape[2])  # of one token and head
    both = both if tokens is None else both[tokens]
    rows.index_copy_(0, (places[:, None] + heads).flatten(), both.flatten(0, 1))


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
    window = 0 if rule.window is None or rule.window >= LONGEST else rule.window
    how = (rule.scale, rule.softcap or 0.0, window, min(rule.sinks, LONGEST))
    where = (reading.positions, reading.tables, reading.starts)
    if far is None:
        return kernels.attend(query_THC, pages, *where, *how)
    recent, bits, top_pages = far.recent, far.bits, far.top_pages
    return kernels.attend_far(
        query_THC, pages, *where, how, recent, bits, far.coded, far.tables, far.bounds, top_pages
    )
