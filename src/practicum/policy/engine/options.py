"""How much an engine may use, checked before anything is built on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from practicum.errors import UsageError, did_you_mean
from practicum.policy.engine.kv_policy import KvPolicy

CACHE_BYTES = 2 << 30
"""Most memory for keys and values, by default; only what is written to is used."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How much an engine may use at once."""

    max_batch_rows: int = 128
    """Sequences that sample in one step"""
    max_step_tokens: int = 512
    """Tokens computed in one step, chunks of prompts included"""
    cache_bytes: int = CACHE_BYTES
    """For keys and values in fast memory"""
    swap_bytes: int = 0
    """For keys and values of earlier work outside it; those of preempted calls find room beyond it,
    as long as the disk has any"""
    swap_folder: Path | None = None
    """Where swapped pages go; None is host memory"""
    speculate: bool = False
    """Guess tokens from prompts and earlier completions and verify several in one step; changes no
    token, and switches itself off where it does not pay"""

    kv: KvPolicy = field(default_factory=KvPolicy)
    """How keys and values are kept and which are read; anything but the default changes log-probs
    too. Coded ones take less memory per token, but for each row some pages stay exact, so lower
    `max_batch_rows` to what is needed"""

    precision: Literal["exact", "w8a8"] = "exact"
    """`w8a8` multiplies in 8 bits: faster, and log-probs are no longer those that a trainer finds,
    so what it samples is for evaluation, drafts, or training that accepts the bias"""

    def __post_init__(self) -> None:
        for name, least in (("max_batch_rows", 1), ("cache_bytes", 1), ("swap_bytes", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise UsageError(f"{name} must be a whole number from {least} on, not {value!r}")
        if type(self.max_step_tokens) is not int or self.max_step_tokens <= self.max_batch_rows:
            raise UsageError(
                f"max_step_tokens ({self.max_step_tokens!r}) must be above max_batch_rows "
                f"({self.max_batch_rows}), so that prompts go on beside completions; raise one or "
                "lower the other"
            )
        if self.precision not in (known := ("exact", "w8a8")):
            raise UsageError(
                f"there is no precision {self.precision!r}.{did_you_mean(self.precision, known)}"
            )
        if self.swap_folder is not None and not self.swap_folder.is_dir():
            raise UsageError(f"swap_folder {self.swap_folder} is not a folder; make it first")

    @property
    def approximations(self) -> str | None:
        """What computes otherwise than the trainer, in words; None if log-probs are the same."""
        kv = self.kv
        parts = {
            "8-bit products": self.precision != "exact",
            f"{kv.bits}-bit keys and values": kv.bits != 16,
            f"a window of {kv.window} tokens": kv.window is not None,
            f"the {kv.top_pages} pages that matter most": kv.top_pages > 0,
        }
        return ", ".join(part for part, applies in parts.items() if applies) or None
