"""A policy that streams what a test decides, token by token. Its tokens are the bytes of UTF-8.

The one thing to know: nothing happens between two tokens unless a test holds it up there
(`between`), and `running` says at any time which completions have not ended.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from practicum.endpoint.streaming import Delta
from practicum.errors import UsageError
from practicum.sampling import Completion, Sampling
from practicum.testing.policy import Answer
from practicum.types import Message, StopReason, WeightVersion

END = 256
"""The token that ends a text."""


class FakeStreamingPolicy:
    """Satisfies `practicum.endpoint.StreamingPolicy`, `RendersChat` and `NamesTokens`.

    Example:
        FakeStreamingPolicy(lambda prompt, rng: rng.choice(["yes", "no"]))
    """

    def __init__(
        self,
        answer: Answer,
        *,
        between: Callable[[], Awaitable[None]] | None = None,
        context_length: int = 4096,
    ) -> None:
        """`between` is awaited ahead of every token: a test can hold it up or raise there."""
        self.answer = answer
        self.between = between
        self.name = "fake"
        self.version = WeightVersion(0)
        self.context_length = context_length
        self.running: set[int] = set()
        """Numbers of the completions that have begun and not ended."""
        self.num_begun = 0
        self.samplings: list[Sampling] = []
        """Of every completion that has begun."""

    def render(self, messages: Sequence[Message]) -> list[int]:
        return list("".join(message.content for message in messages).encode())

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        lines = [json.dumps(message, ensure_ascii=False) for message in messages]
        return list("\n".join([f"tools: {json.dumps(tools)}", *lines] if tools else lines).encode())

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == END else bytes([token_id])

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        async with aclosing(self.stream(prompt_ids, sampling)) as stream:
            whole = Delta.joined([delta async for delta in stream])
        assert whole.stop_reason is not None
        return Completion(
            token_ids=whole.token_ids,
            logprobs=whole.logprobs,
            versions=(self.version,) * len(whole.token_ids),
            text=whole.text,
            stop_reason=whole.stop_reason,
            top_logprobs=whole.top_logprobs,
            reused_tokens=whole.reused_tokens,
        )

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Delta]:
        self._check(prompt_ids)
        number, self.num_begun = self.num_begun, self.num_begun + 1
        self.samplings.append(sampling)
        self.running.add(number)
        try:
            prompt = bytes(prompt_ids).decode(errors="replace")
            said = self.answer(prompt, random.Random(sampling.seed))
            token_ids = [*said.encode(), END][: sampling.max_new_tokens]
            pieces = _Pieces(sampling.stop)
            for index, token_id in enumerate(token_ids):
                await asyncio.sleep(0)
                if self.between is not None:
                    await self.between()
                text, stopped = pieces.push(b"" if token_id == END else bytes([token_id]))
                reason = _reason(token_id, stopped, last=index + 1 == len(token_ids))
                yield Delta(
                    token_ids=(token_id,),
                    text=text + (pieces.rest() if reason and not stopped else ""),
                    logprobs=(fake_logprob(token_id),),
                    top_logprobs=(_top(token_id, sampling.top_logprobs),)
                    if sampling.top_logprobs
                    else (),
                    stop_reason=reason,
                    reused_tokens=len(prompt_ids) // 2,
                )
                if reason is not None:
                    return
        finally:
            self.running.discard(number)

    def _check(self, prompt_ids: Sequence[int]) -> None:
        for token_id in prompt_ids:
            if not 0 <= token_id < END:
                raise UsageError(f"token id {token_id} is outside the vocabulary 0 .. {END - 1}")


def fake_logprob(token_id: int) -> float:
    """What this policy says of a token wherever it stands."""
    return -(1 + token_id % 7) / 8


def _top(token_id: int, count: int) -> tuple[tuple[int, float], ...]:
    """The token and the ones after it, each less likely."""
    others = [(token_id + step) % END for step in range(count)]
    return tuple((other, fake_logprob(token_id) - step) for step, other in enumerate(others))


def _reason(token_id: int, stopped: bool, *, last: bool) -> StopReason | None:
    if stopped:
        return StopReason.STOP_STRING
    if token_id == END:
        return StopReason.EOS
    return StopReason.MAX_TOKENS if last else None


class _Pieces:
    """Text out of bytes: whole characters only, and nothing that could begin a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, raw: bytes) -> tuple[str, bool]:
        """Text that is certain now, and whether a stop string ended it."""
        self._held += self._decoder.decode(raw)
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places:
            return self._held[: min(places)], True
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        text = self._held[: len(self._held) - longest]
        self._held = self._held[len(text) :]
        return text, False

    def rest(self) -> str:
        return self._held
