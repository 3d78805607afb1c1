"""Attention over pages without compiled kernels; it defines what those compute.

The one thing to know: a stretch of queries reads all its keys in one product and one softmax, and
how they are padded depends on positions alone (see `Reading`), so in float32 a query's result has
the same bits in any batch and chunk. In half precision PyTorch's own attention is faster.

Shapes: T tokens, H query heads, K key-value heads, G = H / K, C head size; S stretches of Q tokens
read L positions in N pages.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.policy.model.far_pages import Far
from practicum.policy.model.ops import softcap
from practicum.policy.model.page_layout import PAGE, interleaved, to_natural
from practicum.policy.model.products import multiplies_half, widen
from practicum.policy.model.reading import Reading, Stretches
from practicum.policy.model.shape import AttentionRule

FEWEST_ROWS = 4
"""Products of fewer rows take another path in some libraries, with other roundings."""


def plain_attend(
    pages: Tensor,
    query_THC: Tensor,
    reading: Reading,
    rule: AttentionRule,
    far: Far | None = None,
) -> Tensor:
    """What every query reads, [T, H, C] in the queries' dtype."""
    num_kv = pages.shape[2]
    heads = num_kv, query_THC.shape[1] // num_kv
    half = query_THC.dtype in (torch.bfloat16, torch.float16) and rule.softcap is None
    own, shared = reading.stretches(rule.window, rule.sinks, *heads, half and far is None)
    out = torch.empty_like(query_THC)
    log_totals = out.new_empty(query_THC.shape[:2], dtype=torch.float32)
    for some in own:
        index = some.rows.flatten()
        attended, log_total = _attend(pages, query_THC, some, rule, far)
        out.index_copy_(0, index, attended)
        if shared is not None:
            log_totals.index_copy_(0, index, log_total)
    if shared is not None:
        index = shared.rows.flatten()
        attended, log_total = _attend(pages, query_THC, shared, rule, None)
        share = (log_total - log_totals[index]).sigmoid_()[..., None]
        out[index] = torch.lerp(widen(out[index]), widen(attended), share).to(out.dtype)
    return out


def _attend(
    pages: Tensor, query_THC: Tensor, some: Stretches, rule: AttentionRule, far: Far | None
) -> tuple[Tensor, Tensor]:
    """[S * Q, H, C], and the log of the sum of exponentials [S * Q, H].

    The query heads of a key-value head stand side by side: one product for all.
    """
    num_kv = pages.shape[2]
    group = query_THC.shape[1] // num_kv
    query = query_THC.index_select(0, some.rows.flatten())
    query = query.view(*some.rows.shape, num_kv, group, -1).transpose(1, 2).flatten(2, 3)
    key, value = _gather(pages, some, far)
    bias, num_rows = some.bias, query.shape[2]
    if far is not None and far.top_pages:
        bias = bias.masked_fill(~_chosen(query, some, far, group), -torch.inf)
    if num_rows < FEWEST_ROWS:
        padding = (0, 0, 0, FEWEST_ROWS - num_rows)
        query = F.pad(query, padding)
        bias = bias if bias.shape[2] == 1 else F.pad(bias, padding)
    out, log_total = _read(query, key, value, bias, rule)
    out = out[:, :, :num_rows].unflatten(2, (-1, group)).transpose(1, 2)
    log_total = log_total[:, :, :num_rows].unflatten(2, (-1, group)).transpose(1, 2)
    return out.reshape(-1, *query_THC.shape[1:]), log_total.reshape(-1, query_THC.shape[1])


def _read(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, rule: AttentionRule
) -> tuple[Tensor, Tensor]:
    """[S, K, QG, C] and [S, K, QG], from keys and values [S, K, L, C]."""
    if rule.softcap is None and query.dtype in (torch.bfloat16, torch.float16):
        dtype = query.dtype
        if not multiplies_half():
            query, key, value, bias = (widen(x) for x in (query, key, value, bias))
        out, log_total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=bias, scale=rule.scale
        )
        return out.to(dtype), log_total
    scores = widen(query) * rule.scale @ widen(key).transpose(-1, -2)
    if rule.softcap is not None:
        scores = softcap(scores, rule.softcap)
    scores = scores + bias
    weights = scores.softmax(-1)
    out = (widen(weights.to(value.dtype)) @ widen(value)).to(query.dtype)
    return out, out[..., 0]


def _gather(pages: Tensor, some: Stretches, far: Far | None) -> tuple[Tensor, Tensor]:
    """Keys and values [S, K, L, C] in natural order."""
    num_kv, size = pages.shape[2], pages.shape[3] // PAGE
    natural = to_natural if interleaved(pages.dtype, size) else _as_is
    if far is not None and far.bits < 16:
        # All queries of a stretch are in one block of 128 positions: far from the same keys. Pages
        # that are far need not be among the exact ones.
        is_far = some.numbers * PAGE < far.end(some.positions[0, 0])
        exact = some.pages.masked_fill(is_far, 0)
        both = _by_head(natural(pages[exact.flatten()]), exact.shape)
        coded = far.tables[some.places[:, is_far]].to(torch.int64)
        decoded = natural(far.pages(coded.flatten(), pages.dtype, size))
        both[:, :, :, is_far] = _by_head(decoded, coded.shape)
    elif natural is to_natural:
        both = _by_head(to_natural(pages[some.pages.flatten()]), some.pages.shape)
    else:
        both = pages.view(-1, pages.shape[3]).index_select(0, some.heads)
        both = both.view(2, len(some.pages), num_kv, -1, pages.shape[3])
    key, value = both.unflatten(-1, (PAGE, size)).flatten(3, 4).unbind()
    return key, value


def _as_is(pages: Tensor) -> Tensor:
    return pages


def _by_head(pages: Tensor, size: torch.Size) -> Tensor:
    """[2, S, K, N, 32 * C] of [S * N, 2, K, 32 * C]."""
    return pages.unflatten(0, size).permute(2, 0, 3, 1, 4)


def _chosen(query: Tensor, some: Stretches, far: Far, group: int) -> Tensor:
    """bool [S, K, QG, L]: all near keys, and those of the far pages that a query reads."""
    positions = some.positions.repeat_interleave(group, dim=1)[:, None, :, None]
    chosen = far.chosen(widen(query), positions, some.starts, group)
    near = some.numbers * PAGE >= far.end(some.positions[0, 0])
    chosen = F.pad(chosen, (0, int(some.numbers[-1]) + 1 - chosen.shape[-1]))
    return (chosen[..., some.numbers] | near).repeat_interleave(PAGE, dim=-1)
