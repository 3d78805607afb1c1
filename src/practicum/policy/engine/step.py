"""What one step of the engine does, as the scheduler hands it to the runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from practicum.policy.engine.sequence import Sequence


class Run(NamedTuple):
    """Consecutive tokens of one sequence, to be computed and written into its pages.

    Example:
        Run(sequence, first=0, num_tokens=64, drafts=(), num_logits=0)      # a chunk of a prompt
        Run(sequence, first=70, num_tokens=3, drafts=(5, 9), num_logits=3)  # one token, two guesses
    """

    sequence: Sequence
    first: int
    """Position of the first token; keys and values of all earlier ones are in the pages."""
    num_tokens: int
    """How many tokens, drafts included; never beyond the sequence's page table."""
    drafts: tuple[int, ...]
    """Guesses that follow the sequence's last token."""
    num_logits: int
    """Logits are wanted after this many of its last tokens: 0 for a chunk that does not reach the
    end of the prompt, else 1 + the number of drafts."""

    @property
    def token_ids(self) -> list[int]:
        known = self.num_tokens - len(self.drafts)
        return [*self.sequence.tokens[self.first : self.first + known], *self.drafts]


@dataclass(slots=True)
class Step:
    """Work in the order in which it must be done: `copies`, `swap_in`, `runs`.

    What one list writes, a later one may read; what one list reads, a later one may overwrite.
    Within a list the order is free if all reads come before all writes, as in
    `pool[targets] = pool[sources]`: no place is written twice.
    """

    copies: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(source page, target page)."""
    swap_in: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(slot, page): bring the slot's contents to the page. A slot may appear more than once."""
    runs: list[Run] = field(default_factory=list[Run])
    """At most one for a sequence: first those that decode, then chunks of prompts; both in order of
    arrival."""

    @property
    def num_tokens(self) -> int:
        return sum(run.num_tokens for run in self.runs)

    @property
    def num_logits(self) -> int:
        return sum(run.num_logits for run in self.runs)
