"""A policy whose answers a test decides. Its tokens are the Unicode code points of the text."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from practicum.errors import UsageError
from practicum.sampling import Completion, Sampling
from practicum.types import Message, StopReason, WeightVersion

Answer = Callable[[str, random.Random], str]
"""Prompt text and the attempt's own random stream -> answer text."""


class FakePolicy:
    """Satisfies `practicum.protocols.Policy`.

    Example:
        FakePolicy(lambda prompt, rng: rng.choice(["yes", "no"]))
    """

    def __init__(
        self,
        answer: Answer,
        *,
        before: Callable[[str], Awaitable[None]] | None = None,
        context_length: int = 4096,
    ) -> None:
        """`before` is awaited ahead of every answer: a test can delay it or raise there."""
        self.answer = answer
        self.before = before
        self.name = "fake"
        self.version = WeightVersion(0)
        self.context_length = context_length
        self.num_calls = 0

    def render(self, messages: Sequence[Message]) -> list[int]:
        return [ord(character) for message in messages for character in message.content]

    def publish(self, version: WeightVersion) -> None:
        self.version = version

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        if not prompt_ids:
            raise UsageError("the prompt is empty")
        if len(prompt_ids) + sampling.max_new_tokens > self.context_length:
            raise UsageError(
                f"{len(prompt_ids)} prompt tokens and {sampling.max_new_tokens} new ones do not "
                f"fit a context of {self.context_length}"
            )
        self.num_calls += 1
        version = self.version  # what a straggler began with is what it is judged by
        prompt = "".join(map(chr, prompt_ids))
        if self.before is not None:
            await self.before(prompt)
        await asyncio.sleep(0)
        text = self.answer(prompt, random.Random(sampling.seed))[: sampling.max_new_tokens]
        token_ids = tuple(map(ord, text))
        return Completion(
            token_ids=token_ids,
            logprobs=(-1.0,) * len(token_ids),
            versions=(version,) * len(token_ids),
            text=text,
            stop_reason=StopReason.EOS,
        )
