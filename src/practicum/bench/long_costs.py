"""Bytes of keys and values of real models, and what reading a million tokens would cost here.

Extrapolations from shapes and two rates measured in this process: copying memory and attending.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from practicum.policy.model.coded_pages import PAGE, coded_bytes
from practicum.policy.model.paged import Reading, attend, put
from practicum.policy.model.shape import AttentionRule

Row = Mapping[str, object]

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a published model, as its configuration says."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    parameters: float
    """Used for a token, in thousand millions"""


MODELS: Mapping[str, Sizes] = {
    "SmolLM2-135M": Sizes(30, 9, 3, 64, 0.135),
    "Qwen2.5-0.5B": Sizes(24, 14, 2, 64, 0.49),
    "SmolLM2-1.7B": Sizes(24, 32, 32, 64, 1.7),
    "Qwen3-4B": Sizes(36, 32, 8, 128, 4.0),
    "Llama-3.1-8B": Sizes(32, 32, 8, 128, 8.0),
    "Qwen3-30B-A3B": Sizes(48, 32, 4, 128, 3.3),
    "Llama-3.1-70B": Sizes(80, 64, 8, 128, 70.6),
}


def costs(quick: bool) -> list[Row]:
    """A row for each model: bytes per token by precision, then a context of a million tokens."""
    per_s = _products_per_s(2048 if quick else 8192)
    rows: list[Row] = []
    for name, sizes in MODELS.items():
        heads = sizes.layers * sizes.kv_heads
        stored = {bits: heads * _head_bytes(sizes.head_size, bits) for bits in (16, 8, 4)}
        # Every token meets all before it: keys and values, for each query head.
        attention = sizes.layers * sizes.heads * 2 * sizes.head_size * MILLION**2 / 2
        local = attention * 2 * 4096 / MILLION
        linear = sizes.parameters * 1e9 * MILLION
        row: dict[str, object] = {"model": name}
        row |= {f"bytes/token {bits} bit": round(size) for bits, size in stored.items()}
        row |= {f"1M GB {bits} bit": size * MILLION / 1e9 for bits, size in stored.items()}
        row |= {
            "attention share": f"{attention / (attention + linear):.0%}",
            "full, core-h": (attention + linear) / per_s / 3600,
            "4k local, core-h": (local + linear) / per_s / 3600,
        }
        rows.append(row)
    return rows


def _head_bytes(head_size: int, bits: int) -> float:
    """Of keys and values of a token in one head, scales included."""
    return 4 * head_size if bits == 16 else coded_bytes(head_size, bits) / PAGE


def _products_per_s(length: int) -> float:
    """Multiply-adds per second of one core that attends, in blocks of a prompt."""
    num_heads, num_kv, size, count = 8, 2, 128, 256
    pages = torch.zeros(length // PAGE, 2, num_kv, PAGE * size, dtype=torch.bfloat16)
    table = list(range(length // PAGE))
    key = torch.randn(length, num_kv, size).bfloat16()
    put(pages, key, key, Reading.of([(table, 0, length)]).slots())
    query = torch.randn(count, num_heads, size).bfloat16()
    reading, rule = Reading.of([(table, length - count, count)]), AttentionRule(size**-0.5)
    attend(pages, query, reading, rule)
    before = time.process_time()
    attend(pages, query, reading, rule)
    return count * length * num_heads * 2 * size / (time.process_time() - before)
