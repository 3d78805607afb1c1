"""Sequences with keys and values in shuffled pages, as the attention tests need them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.policy.model.paged import PAGE, Reading, put
from practicum.policy.model.shape import AttentionRule


@dataclass(frozen=True, slots=True)
class Sizes:
    num_heads: int
    num_kv: int
    head_size: int


@dataclass(slots=True)
class Paged:
    """Sequences of given lengths, some of them with a beginning in common that is kept once."""

    sizes: Sizes
    pages: Tensor
    tables: list[list[int]]
    queries: list[Tensor]
    """[L, H, C] of each sequence"""
    keys: list[Tensor]
    values: list[Tensor]

    def reading(self, picks: Sequence[tuple[int, int, int]]) -> tuple[Reading, Tensor]:
        """For (sequence, first position, count), and the queries of those tokens."""
        reading = Reading.of([(self.tables[s], first, count) for s, first, count in picks])
        queries = [self.queries[s][first : first + count] for s, first, count in picks]
        return reading, torch.cat(queries)


def fill(
    lengths: Sequence[int],
    sizes: Sizes,
    dtype: torch.dtype,
    *,
    shared: int = 0,
    seed: int = 0,
) -> Paged:
    """The first `shared` positions (whole pages of them in one place) are equal in all."""
    generator = torch.Generator().manual_seed(seed)

    def normal(count: int, heads: int) -> Tensor:
        size = (count, heads, sizes.head_size)
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    num_pages = sum(-(-length // PAGE) for length in lengths) + 3
    free = random.Random(seed).sample(range(num_pages), num_pages)
    # What no token wrote must not be seen: large, but finite, as after an earlier sequence.
    pages = torch.full((num_pages, 2, sizes.num_kv, PAGE * sizes.head_size), 50.0, dtype=dtype)
    paged = Paged(sizes, pages, [], [], [], [])
    for number, length in enumerate(lengths):
        key, value = normal(length, sizes.num_kv), normal(length, sizes.num_kv)
        common = shared // PAGE if number else 0
        if number:
            key[:shared], value[:shared] = paged.keys[0][:shared], paged.values[0][:shared]
        table = [*paged.tables[0][:common]] if number else []
        table += [free.pop() for _ in range(-(-length // PAGE) - common)]
        own = Reading.of([(table, common * PAGE, length - common * PAGE)]).slots()
        put(pages, key[common * PAGE :], value[common * PAGE :], own)
        paged.tables.append(table)
        paged.queries.append(normal(length, sizes.num_heads))
        paged.keys.append(key)
        paged.values.append(value)
    return paged


def exact(
    paged: Paged, sequence: int, first: int, count: int, rule: AttentionRule
) -> tuple[Tensor, Tensor]:
    """[count, H, C] in float64, and the same of the values' sizes, which errors are relative to."""
    group = paged.sizes.num_heads // paged.sizes.num_kv
    key, value = (
        kept[sequence].double().repeat_interleave(group, 1).transpose(0, 1)
        for kept in (paged.keys, paged.values)
    )
    query = paged.queries[sequence][first : first + count].double().transpose(0, 1)
    scores = query @ key.transpose(-1, -2) * rule.scale
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    queries, keys = torch.arange(first, first + count)[:, None], torch.arange(key.shape[1])
    seen = keys <= queries
    if rule.window is not None:
        seen &= (keys > queries - rule.window) | (keys < rule.sinks)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return (weights @ value).transpose(0, 1), (weights @ value.abs()).transpose(0, 1)
