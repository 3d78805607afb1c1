"""A policy that an engine elsewhere runs: all that does not depend on which engine it is.

The one thing to know: an engine is a `Wire`, a few calls in its own words. `RemotePolicy` refuses
bad requests, lets them wait while weights change, and makes completions of what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from practicum.policy.engine.adapters.answers import Answer, Asked, completion
from practicum.policy.engine.adapters.exactness import Scale, why_inexact
from practicum.policy.engine.adapters.limits import check_request
from practicum.policy.engine.adapters.updates import Controls, Weights
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Completion, Sampling
from practicum.types import Message, WeightVersion


class Wire(Controls, Protocol):
    """How one kind of engine is spoken to."""

    async def ask(self, prompt_ids: Sequence[int], sampling: Sampling, cache_key: str) -> Answer:
        """Sample one completion, sharing prompts only with requests of the same `cache_key`."""
        ...

    def prepared(self, folder: Path) -> AbstractAsyncContextManager[Path]:
        """The folder as the engine has to load it. Raises UsageError if it cannot, in time."""
        ...

    async def load(self, folder: Path) -> None:
        """Replace the weights, while sampling is paused."""
        ...

    async def close(self) -> None:
        """Let go of the engine. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class RemotePolicy:
    """Satisfies `protocols.Policy`. It belongs to the event loop that it is used on."""

    name: str
    tokens: Tokens
    context_length: int
    scale: Scale
    """What the engine's log-probs are of."""
    weights: Weights
    wire: Wire

    @property
    def version(self) -> WeightVersion:
        return self.weights.version

    def why_not_trainable(self, sampling: Sampling) -> str | None:
        """Why completions of this sampling cannot be trained on; None if they can."""
        return why_inexact(self.scale, sampling)

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self.tokens.render(messages)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; see `protocols.Policy.generate`. Cancelling it frees its place."""
        check_request(
            prompt_ids,
            sampling,
            name=self.name,
            context_length=self.context_length,
            largest_id=self.tokens.largest_id,
        )
        version = await self.weights.enter()
        answer = await self.wire.ask(prompt_ids, sampling, self.weights.cache_key)
        fills_context = len(prompt_ids) + sampling.max_new_tokens == self.context_length
        asked = Asked(sampling, version, fills_context)
        return completion(answer, asked, self.tokens, engine=self.name)

    def updating(self, version: int) -> AbstractAsyncContextManager[None]:
        """Around any transport of new weights, such as vLLM's `TrainerWeightTransferEngine`."""
        return self.weights.changing(version, self.wire)

    async def update_weights(self, folder: Path, version: int) -> None:
        """Load a Hugging Face folder, which the engine can read, as `version`.

        Raises UsageError if the engine cannot be updated at all, and PolicyDead if it failed on the
        way, after which nothing more is sampled.
        """
        async with self.wire.prepared(folder) as ready, self.updating(version):
            await self.wire.load(ready)

    async def close(self) -> None:
        """Let go of the engine. Idempotent."""
        await self.wire.close()
