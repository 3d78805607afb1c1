"""What a proposer sees and what it answers: guesses, each with how sure it is.

A guess costs speed when it is wrong and never a token: `verify` decides. So a proposer may be
anything, may forget anything, and need not be repeatable.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from practicum.types import WeightVersion


class Guess(NamedTuple):
    """One token that may come next, after all guesses before it came true."""

    token: int
    confidence: float
    """In [0, 1], in the proposer's own currency: more must mean likelier. What a confidence is
    worth is measured, not believed."""


@dataclass(frozen=True, slots=True)
class View:
    """One completion under way, as proposers see it at a step boundary.

    Requests that agree so far are one sequence: the view is that of its first request, so that
    a fork continues one view and begins others.
    """

    request_id: Hashable
    key: Hashable
    """Equal for equal prompts: siblings and earlier epochs are found by it."""
    prompt: Sequence[int]
    tokens: Sequence[int]
    """Sampled so far. It only grows from view to view."""
    version: WeightVersion
    """Of the weights that the next token will be sampled from."""
    max_new: int
    """Tokens that may still be sampled, at least 1."""
    uniforms: Sequence[float] | None = ()
    """The numbers that will draw the next tokens, as many as are known; None if it is greedy."""
    num_requests: int = 1
    """How many requests agree so far, and share a row."""
    num_apart: int = 0
    """How many of them draw by numbers of their own: a guess that comes true for this one may be
    wrong for them, so none is made for their sake."""

    @property
    def num_served(self) -> int:
        """How many requests a right guess serves for certain."""
        return self.num_requests - self.num_apart

    def context(self, num_tokens: int) -> list[int]:
        """The last tokens of prompt and completion together."""
        own = list(self.tokens[-num_tokens:])
        missing = num_tokens - len(own)
        return [*self.prompt[-missing:], *own] if missing else own


class Proposer(Protocol):
    """Guesses how completions go on."""

    @property
    def name(self) -> str: ...

    def propose(self, views: Sequence[View], max_guesses: int) -> list[list[Guess]]:
        """Up to so many guesses for each view, best effort."""
        ...

    def finished(self, view: View) -> None:
        """No more tokens will come, for whatever reason: learn from these, forget the request."""
        ...
