"""What the two kinds of reply have in common: ids, finish reasons, usage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from practicum.endpoint.refusals import server_error
from practicum.endpoint.streaming import Delta, Json
from practicum.protocols import Policy
from practicum.sampling import Sampling
from practicum.types import StopReason

FINISH = {
    StopReason.EOS: "stop",
    StopReason.STOP_STRING: "stop",
    StopReason.MAX_TOKENS: "length",
    StopReason.CONTEXT_END: "length",
}


def finish_reason(reason: StopReason | None) -> str | None:
    """In OpenAI's words. Raises Refusal if the completion was aborted: it is no answer."""
    if reason is StopReason.ABORTED:
        raise server_error("the completion was aborted", code="aborted")
    return None if reason is None else FINISH[reason]


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one reply begins with."""

    prefix: str
    """`chatcmpl` or `cmpl`."""
    model: str
    fingerprint: str
    """Tells replies of different weights apart."""
    created: int = field(default_factory=lambda: int(time.time()))
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    @staticmethod
    def of(policy: Policy, model: str, prefix: str) -> Head:
        return Head(prefix, model, f"weights-{policy.version}")

    def __call__(self, kind: str, choices: Sequence[Json], **more: Any) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.key}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


class Wire(Protocol):
    """One reply in one format, as a whole or as chunks of a stream."""

    def whole(self, choices: Sequence[Delta], usage: Json) -> Json: ...

    def opening(self) -> list[Json]:
        """Chunks ahead of the first token."""
        ...

    def chunks(self, index: int, delta: Delta) -> list[Json]:
        """Chunks for what was added to choice `index`."""
        ...

    def closing(self, usage: Json) -> Json:
        """The chunk that says what the request cost."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion to sample."""

    prompt_ids: Sequence[int]
    sampling: Sampling


@dataclass(slots=True)
class Job:
    """A request that was understood: what to sample, and how to tell of it."""

    asks: Sequence[Ask]
    """`n` for each prompt, those of the first prompt first."""
    n: int
    wire: Wire
    stream: bool
    include_usage: bool
    sampled_tokens: int = 0
    reused_tokens: int = 0
    """Of the first completion of each prompt: the others share that one's work anyway."""

    def count(self, index: int, delta: Delta) -> None:
        self.sampled_tokens += len(delta.token_ids)
        if index % self.n == 0 and delta.stop_reason is not None:
            self.reused_tokens += delta.reused_tokens

    @property
    def prompt_tokens(self) -> int:
        return sum(len(ask.prompt_ids) for ask in self.asks[:: self.n])

    @property
    def usage(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.sampled_tokens,
            "total_tokens": self.prompt_tokens + self.sampled_tokens,
            "prompt_tokens_details": {"cached_tokens": self.reused_tokens},
        }
