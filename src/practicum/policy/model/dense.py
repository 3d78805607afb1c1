"""The plain memory: whole sequences of equal length, one masked softmax, nothing kept.

The definition of attention that the engine's pages and the trainer's forests are tested against.

Shapes: T = B * L packed tokens of B sequences, H query heads, K key-value heads, C head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.policy.model.ops import softcap
from practicum.policy.model.products import widen
from practicum.policy.model.shape import AttentionRule


@dataclass(frozen=True, slots=True)
class DenseMemory:
    """B sequences one after the other, each from its first token to its last."""

    num_sequences: int = 1

    def attend(
        self, layer: int, query_THC: Tensor, key_TKC: Tensor, value_TKC: Tensor, rule: AttentionRule
    ) -> Tensor:
        """[T, H, C] in the queries' dtype; scores and sums at least float32."""
        shape = (self.num_sequences, -1)
        query, key, value = (
            widen(x).unflatten(0, shape).transpose(1, 2) for x in (query_THC, key_TKC, value_TKC)
        )
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = query @ key.transpose(-1, -2) * rule.scale
        if rule.softcap is not None:
            scores = softcap(scores, rule.softcap)
        hidden = ~visible(scores.shape[-1], rule.window).to(scores.device)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(0, 1).to(query_THC.dtype)


def visible(length: int, window: int | None) -> Tensor:
    """bool [L, L]: whether query q (row) sees key k (column)."""
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    return seen if window is None else seen.triu(1 - window)
