"""What an engine has done so far: the numbers behind tokens per second and shared work."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since the engine was made. Subtract two snapshots for what happened between them.

    Example:
        before = engine.stats
        ...
        tokens = (engine.stats - before).sampled_tokens
    """

    requests: int = 0
    prompt_tokens: int = 0
    """Of all requests, as asked."""
    computed_prompt_tokens: int = 0
    """What went through the network: equal prompts and common beginnings counted once, and all
    that had to be computed a second time."""
    sampled_tokens: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    """Rows summed over decode steps; samples that agree so far share one."""
    drafted_tokens: int = 0
    """Guesses that were run, each in a row of its own."""
    accepted_tokens: int = 0
    """Tokens that needed no step of their own, because a guess before them came true: one for each
    request that it served."""
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        return Stats(*map(operator.add, _numbers(self), _numbers(other)))

    def __sub__(self, other: Stats) -> Stats:
        return Stats(*map(operator.sub, _numbers(self), _numbers(other)))


_numbers = operator.attrgetter(*(field.name for field in fields(Stats)))
