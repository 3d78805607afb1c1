"""How an engine keeps keys and values, and which of them its layers read.

The one thing to know: the default is exact. Everything else changes what the model computes, always
in the same way for a token at a given position, so chunking, batching, preemption and swapping
still change no bit; only the trainer, which reads everything exactly, no longer agrees to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from practicum.errors import UsageError
from practicum.policy.engine.blocks import Blocks
from practicum.policy.model.coded_pages import PAGE, coded_bytes
from practicum.policy.model.far_pages import BLOCK
from practicum.policy.model.paged import LONGEST
from practicum.policy.model.shape import AttentionRule, Shape


@dataclass(frozen=True, slots=True)
class KvPolicy:
    """Precision of stored keys and values, and what is left out when they are read.

    Example:
        `KvPolicy(bits=4)` stores an eighth of float32; `KvPolicy(window=4096, sinks=4)` is sink +
        local attention; `KvPolicy(bits=8, top_pages=64)` reads the 2,048 keys that matter most.
    """

    bits: Literal[16, 8, 4] = 16
    """16 keeps the model's dtype; else pages are coded once their block of 128 is complete"""
    recent: int = 0
    """Positions before a token's own block of 128 that it reads exactly; a multiple of 128. Where
    pages are coded, above 0 also means that no request goes on from what earlier ones computed"""
    top_pages: int = 0
    """So many of the pages before those are read, whichever matter most; 0 is all"""
    window: int | None = None
    """A token sees itself and the `window - 1` before; None leaves layers as the model has them"""
    sinks: int = 0
    """The first tokens that stay visible beyond `window`"""
    layers: frozenset[int] | None = None
    """Those that `top_pages` and `window` apply to; None is all"""

    def __post_init__(self) -> None:
        if self.bits not in (16, 8, 4):
            raise UsageError(f"keys and values can have 16, 8 or 4 bits, not {self.bits}")
        if self.recent < 0 or self.recent % BLOCK:
            raise UsageError(f"recent must be a multiple of {BLOCK}, not {self.recent}")
        if self.top_pages < 0 or self.sinks < 0:
            raise UsageError("top_pages and sinks cannot be negative")
        for name in ("recent", "top_pages", "window", "sinks"):
            if (getattr(self, name) or 0) > LONGEST:
                raise UsageError(f"{name} can be {LONGEST} at most, not {getattr(self, name)}")
        if self.window is not None and self.window < 1:
            raise UsageError(f"a window has at least 1 token, not {self.window}")
        if self.window is not None and self.top_pages:
            raise UsageError("choose a window or top_pages: within a window every page is read")

    def check_layers(self, shape: Shape) -> None:
        """Raises UsageError if `layers` names one that the model does not have."""
        for layer in sorted(self.layers or ()):
            if not 0 <= layer < shape.num_layers:
                raise UsageError(
                    f"layers names {layer}, but those of this model are 0 .. {shape.num_layers - 1}"
                )

    @property
    def is_plain(self) -> bool:
        """Whether all pages are read from where they were written."""
        return self.bits == 16 and not self.top_pages

    @property
    def blocks(self) -> Blocks:
        """When pages are finished."""
        if self.is_plain:
            return Blocks()
        return Blocks(BLOCK, self.recent if self.bits < 16 else 0)

    def rule(self, layer: int, declared: AttentionRule) -> AttentionRule:
        """What a layer reads: the narrower of the model's window and ours."""
        if self.window is None or not self._applies(layer):
            return declared
        if declared.window is not None and declared.window <= self.window:
            return declared
        return replace(declared, window=self.window, sinks=self.sinks)

    def top_of(self, layer: int, rule: AttentionRule) -> int:
        """How many far pages a layer reads at most; 0 is all that its window allows."""
        return self.top_pages if rule.window is None and self._applies(layer) else 0

    def _applies(self, layer: int) -> bool:
        return self.layers is None or layer in self.layers

    def page_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """Of one page in all layers once it is coded; `bounds` of `top_pages` included."""
        size = shape.head_size
        exact = 2 * PAGE * size * dtype.itemsize
        head = exact if self.bits == 16 else coded_bytes(size, self.bits)
        if self.top_pages:
            head += 2 * size * dtype.itemsize
        return shape.num_layers * shape.num_kv_heads * head

    def num_pages(
        self, shape: Shape, dtype: torch.dtype, memory: int, max_rows: int, max_step_tokens: int
    ) -> tuple[int, int]:
        """Pages that fit into so many bytes, and how many of them can be exact at a time.

        Exact are those that somebody writes to or still reads exactly, and those copied in a step.
        """
        coded = self.page_bytes(shape, dtype)
        if self.bits == 16:
            return memory // coded, memory // coded
        exact = replace(self, bits=16, top_pages=0).page_bytes(shape, dtype)
        most = max_rows * ((self.recent + BLOCK) // PAGE + 2) + -(-max_step_tokens // PAGE)
        if (both := memory // (coded + exact)) <= most:
            return both, both
        return (memory - most * exact) // coded, most
