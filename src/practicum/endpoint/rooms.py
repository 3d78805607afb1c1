"""How many tokens a completion may have: what was asked for, checked against the context."""

from __future__ import annotations

from practicum.endpoint.refusals import Refusal
from practicum.protocols import Policy


def room(policy: Policy, num_prompt: int, asked: int | None, *, default: int, param: str) -> int:
    """`asked`, or else `default` as far as the context reaches. Raises Refusal if it does not."""
    limit = policy.context_length
    if num_prompt == 0:
        raise Refusal("the prompt is empty; a completion needs at least one token", param=param)
    if num_prompt + (asked or 1) > limit:
        wanted = f" and {asked} more are asked for" if asked else ""
        raise Refusal(
            f"the maximum context length of this model is {limit} tokens, but the prompt has "
            f"{num_prompt}{wanted}; shorten the prompt or lower `max_tokens`",
            param=param,
            code="context_length_exceeded",
        )
    return asked or min(default, limit - num_prompt)
