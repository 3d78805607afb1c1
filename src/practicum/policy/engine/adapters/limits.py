"""What every adapter refuses before it bothers an engine.

Engines shorten what does not fit (vLLM lowers `max_tokens` without a word), so the limits of
`protocols.Policy` are checked here.
"""

from __future__ import annotations

from collections.abc import Sequence

from practicum.errors import UsageError
from practicum.sampling import Sampling

SEED_BITS = 63
"""Engines keep seeds as signed 64-bit integers."""


def check_request(
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    name: str,
    context_length: int,
    largest_id: int | None = None,
) -> None:
    """Raise UsageError if the engine `name` cannot do this as asked."""
    if not prompt:
        raise UsageError("the prompt is empty; a completion needs at least one token before it")
    total = len(prompt) + sampling.max_new_tokens
    if total > context_length:
        raise UsageError(
            f"a prompt of {len(prompt)} tokens and {sampling.max_new_tokens} new ones make "
            f"{total}, but {name} holds {context_length}; shorten the prompt or lower "
            "max_new_tokens"
        )
    if largest_id is not None:
        for token in prompt:
            if not 0 <= token <= largest_id:
                raise UsageError(f"token id {token} is outside the vocabulary 0 .. {largest_id}")
    if "" in sampling.stop:
        raise UsageError("a stop string must not be empty")


def wire_seed(seed: int) -> int:
    """A seed that any engine takes, different for any two seeds below 2**63."""
    return seed & ((1 << SEED_BITS) - 1)
