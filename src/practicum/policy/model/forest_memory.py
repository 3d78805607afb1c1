"""How the tokens of a forest attend to their ancestors: forward as the engine does, in pages.

The one thing to know: forward, the keys of every path are laid in pages and read by the very
kernel that the engine reads with, so trainer and engine agree bit for bit. Backward, the plain
dense form is run again and differentiated, at the cost of one more attention. Where there is no
kernel, and so no promise of bits, the dense form runs forward too.

Shapes: T tokens, H query heads, K key-value heads, C head size; in a block R trees of L tokens.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.policy.model.forest import Block, Forest
from practicum.policy.model.native import kernels
from practicum.policy.model.ops import compiled, softcap
from practicum.policy.model.paged import PAGE, Reading, attend, new_pages, put
from practicum.policy.model.products import widen
from practicum.policy.model.shape import AttentionRule, Shape


class ForestMemory:
    """Satisfies `transformer.Memory` for the tokens of one forest, all at once."""

    def __init__(self, forest: Forest, shape: Shape) -> None:
        self.forest = forest
        self._shape = shape
        self._reading, self._tokens, self._slots, self._num_pages = _lay_out(forest)

    def attend(
        self, layer: int, query_THC: Tensor, key_TKC: Tensor, value_TKC: Tensor, rule: AttentionRule
    ) -> Tensor:
        """[T, H, C] in the queries' dtype. Differentiable."""
        del layer

        def paged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            pages = new_pages(self._shape, self._num_pages, query.dtype)
            put(pages, key, value, self._slots, self._tokens)
            return attend(pages, query, self._reading, rule)

        def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return dense_attend(self.forest, query, key, value, rule)

        if not kernels.serves(query_THC.dtype, self._shape.head_size):
            return dense(query_THC, key_TKC, value_TKC)
        return compiled(paged, dense, query_THC, key_TKC, value_TKC)


def _lay_out(forest: Forest) -> tuple[Reading, Tensor, Tensor, int]:
    """How the tokens read, which tokens stand in which slots, and how many pages there are.

    Paths share the pages in which they agree; where they part within a page, each has its own.
    """
    numbers: dict[bytes, int] = {}
    tokens: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    tables: list[int] = []
    starts = np.full(len(forest), -1, dtype=np.int64)
    for path in forest.paths:
        fresh = path[starts[path] < 0]
        starts[fresh] = len(tables)
        for first in range(0, len(path), PAGE):
            part = path[first : first + PAGE]
            number = numbers.setdefault(part.tobytes(), len(numbers))
            if number == len(tokens):
                tokens.append(part)
                slots.append(number * PAGE + np.arange(len(part)))
            tables.append(number)
    reading = Reading(
        positions=forest.positions,
        tables=torch.tensor(tables, dtype=torch.int32),
        starts=torch.from_numpy(starts),
    )
    placed = (torch.from_numpy(np.concatenate(parts)) for parts in (tokens, slots))
    return reading, *cast(tuple[Tensor, Tensor], tuple(placed)), len(numbers)


def dense_attend(
    forest: Forest, query_THC: Tensor, key_TKC: Tensor, value_TKC: Tensor, rule: AttentionRule
) -> Tensor:
    """The same as dense masked attention over padded trees: the form that is differentiated."""
    query, key, value = widen(query_THC), widen(key_TKC), widen(value_TKC)
    outputs = [_attend_block(forest, block, query, key, value, rule) for block in forest.blocks]
    return torch.cat(outputs).index_select(0, forest.place).to(query_THC.dtype)


def _attend_block(
    forest: Forest, block: Block, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule
) -> Tensor:
    """[R * L, H, C].

    The G query heads of a key-value head are laid side by side along the query axis: one product
    per key-value head instead of copied keys (torch's own grouped path is an order slower on CPU).
    """
    num_trees, longest = block.index.shape
    num_heads, head_size = query.shape[1:]
    num_kv = key.shape[1]
    group = num_heads // num_kv
    index = block.index.flatten()
    query = query.index_select(0, index).view(num_trees, longest, num_kv, group, head_size)
    query = query.permute(0, 2, 3, 1, 4).reshape(num_trees, num_kv, group * longest, head_size)
    key = key.index_select(0, index).view(num_trees, longest, num_kv, head_size).transpose(1, 2)
    value = value.index_select(0, index).view(num_trees, longest, num_kv, head_size)
    allowed = _allowed(forest, block, rule).repeat(1, 1, group, 1)
    value = value.transpose(1, 2)
    if rule.softcap is None:
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, scale=rule.scale
        )
    else:
        scores = softcap(query @ key.transpose(-1, -2) * rule.scale, rule.softcap)
        attended = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ value
    attended = attended.view(num_trees, num_kv, group, longest, head_size).permute(0, 3, 1, 2, 4)
    return attended.reshape(num_trees * longest, num_heads, head_size)


def _allowed(forest: Forest, block: Block, rule: AttentionRule) -> Tensor:
    """bool [R, 1, L, L]: ancestors within the layer's window."""
    if rule.window is None:
        return block.allowed
    positions = forest.positions[block.index]
    near = positions[:, :, None] - positions[:, None, :] < rule.window
    near |= positions[:, None, :] < rule.sinks
    return block.allowed & near[:, None]
