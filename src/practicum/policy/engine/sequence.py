"""Tokens that one or more requests agree on so far, and the pages with their keys and values.

Requests that agree share every computation. When they draw different tokens the sequence forks:
the branches share all pages by reference, and one that writes into a shared page copies it first.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field

from practicum.policy.engine.pages import PAGE, num_pages
from practicum.policy.engine.prefix import Node, PageKey
from practicum.policy.engine.request import Request


def _integers() -> array[int]:
    return array("i")


@dataclass(slots=True, eq=False)
class Sequence:
    """One row of the batch.

    The last token is never computed yet: computing it is what the next step is for.
    """

    requests: list[Request]
    """Those that agree so far; empty once it has ended."""
    num_prompt: int
    """Tokens of the prompt."""
    tokens: array[int]
    """Prompt and sampled tokens; only grows."""
    pages: array[int] = field(default_factory=_integers)
    """Page table: position p is at slot `p % 32` of page `pages[p // 32]`. Grows; the entry of the
    page being written changes when a shared page is copied; empty while the sequence waits."""
    num_computed: int = 0
    """Tokens whose keys and values exist."""
    eras: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(first position, era of the weights that it and its successors were computed in), ascending;
    a new entry only where the weights changed under way."""
    drafts: tuple[int, ...] = ()
    """Guesses at its next tokens, to be verified in the next step. Set by the engine before
    `Scheduler.schedule`, which takes them."""
    has_begun: bool = False
    """Whether it was admitted before"""
    parked: list[Node] = field(default_factory=list[Node])
    """While preempted: the pinned nodes that hold its computed tokens."""
    parked_slots: list[int] = field(default_factory=list[int])
    """While preempted: slots of the pages after those, which are not finished yet."""

    @staticmethod
    def of(request: Request) -> Sequence:
        """The sequence of a request that has sampled nothing yet."""
        return Sequence([request], len(request.prompt_ids), array("i", request.prompt_ids))

    @property
    def is_parked(self) -> bool:
        """Whether it waits after a preemption."""
        return bool(self.parked or self.parked_slots)

    @property
    def is_redone(self) -> bool:
        """Whether tokens that were sampled already must be computed a second time."""
        return self.num_prompt < len(self.tokens) and self.num_computed + 1 < len(self.tokens)

    @property
    def salt(self) -> tuple[str, ...]:
        return self.requests[0].salt

    def computed(self, end: int, era: int) -> None:
        """Tokens up to `end` now have keys and values, the new ones made in `era`."""
        if not self.eras or self.eras[-1][1] != era:
            self.eras.append((self.num_computed, era))
        self.num_computed = end

    def of_one_era(self, era: int) -> bool:
        """Whether everything was computed with the weights of this era."""
        return len(self.eras) == 1 and self.eras[0][1] == era

    def can_restart(self, era: int) -> bool:
        """Whether computing everything again, in this era, would give the same tokens."""
        return len(self.tokens) == self.num_prompt or self.of_one_era(era)

    def restart(self) -> None:
        """Forget that anything was computed."""
        self.num_computed, self.eras, self.drafts = 0, [], ()

    def num_shared(self, other: Sequence, end: int) -> int:
        """Length of the common beginning with the other's first `end` tokens."""
        end = min(end, len(self.tokens) - 1, len(other.tokens))
        for start in range(0, end, PAGE):
            part = slice(start, min(start + PAGE, end))
            mine, theirs = self.tokens[part], other.tokens[part]
            if mine != theirs:
                return start + next(i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b)
        return end

    def extend(self, new: Sequence_[int], era: int) -> None:
        """Take in sampled tokens. All but the last were guessed, and computed in this era."""
        self.tokens.extend(new)
        if len(new) > 1:
            self.computed(len(self.tokens) - 1, era)

    def fork(self, requests: list[Request], new: Sequence_[int], era: int) -> Sequence:
        """A branch whose requests drew these tokens, as in `extend`, which this one has not taken
        in yet. The caller counts its references to pages."""
        branch = Sequence(requests, self.num_prompt, self.tokens[:], has_begun=True)
        branch.num_computed, branch.eras = self.num_computed, self.eras[:]
        branch.extend(new, era)
        branch.pages = self.pages[: num_pages(branch.num_computed)]
        return branch

    def page_keys(self, end: int) -> list[PageKey]:
        """What determines the contents of each page, for the tokens before `end`."""
        return [
            PageKey(tuple(self.tokens[start : min(start + PAGE, end)]), self._eras(start, end))
            for start in range(0, end, PAGE)
        ]

    def _eras(self, start: int, end: int) -> int | tuple[int, ...]:
        if len(self.eras) == 1:
            return self.eras[0][1]
        result = [0] * (min(start + PAGE, end) - start)
        for first, era in self.eras:
            for offset in range(max(first - start, 0), len(result)):
                result[offset] = era
        return result[0] if len(set(result)) == 1 else tuple(result)
