"""What a policy can offer beyond `protocols.Policy`: a completion while it grows, and its words.

The one thing to know: all of it is optional. A policy that only generates is served too; its
completion then arrives as one delta at the end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, runtime_checkable

from practicum.protocols import Policy
from practicum.sampling import Delta, Sampling

__all__ = ["Delta", "NamesTokens", "RendersChat", "StreamingPolicy", "deltas"]

Json = Mapping[str, Any]


@runtime_checkable
class StreamingPolicy(Policy, Protocol):
    """A policy that shows a completion while it grows."""

    def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Delta]:
        """Like `generate`, piece by piece, with the same tokens and the same errors.

        Closing the generator, or cancelling who waits for it, aborts the request.
        """
        ...


@runtime_checkable
class RendersChat(Protocol):
    """A policy that can write tools and tool calls into its own chat template."""

    def render_chat(self, messages: Sequence[Json], tools: Sequence[Json] | None) -> list[int]:
        """Token ids of the prompt that makes the policy speak next.

        Messages and tools are those of a chat template: `role`, `content` and, where there are
        any, `tool_calls` with `arguments` as an object. Raises UsageError like `Policy.render`.
        """
        ...


@runtime_checkable
class NamesTokens(Protocol):
    """A policy that says which bytes its tokens stand for."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; of a control token, those of its name."""
        ...


async def deltas(
    policy: Policy, prompt_ids: Sequence[int], sampling: Sampling
) -> AsyncGenerator[Delta]:
    """The completion as it grows, or in one piece from a policy that does not stream."""
    if isinstance(policy, StreamingPolicy):
        async with aclosing(policy.stream(prompt_ids, sampling)) as stream:
            async for delta in stream:
                yield delta
        return
    completion = await policy.generate(prompt_ids, sampling)
    yield Delta(
        token_ids=completion.token_ids,
        text=completion.text,
        logprobs=completion.logprobs,
        top_logprobs=completion.top_logprobs,
        stop_reason=completion.stop_reason,
        reused_tokens=completion.reused_tokens,
    )
