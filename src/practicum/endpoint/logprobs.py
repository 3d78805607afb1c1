"""Log-probabilities in OpenAI's two formats, one entry for each sampled token."""

from __future__ import annotations

import codecs
import math
from dataclasses import dataclass, field
from typing import Any

from practicum.endpoint.streaming import Delta, Json, NamesTokens
from practicum.protocols import Policy

LEAST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for what is all but impossible."""


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How tokens are written: their text, `bytes:\\xe2\\x82` for a part of a character, or
    `token_id:5` for a policy that does not say.
    """

    policy: Policy

    def bytes_of(self, token_id: int) -> bytes | None:
        if isinstance(self.policy, NamesTokens):
            return self.policy.token_bytes(token_id)
        return None

    def name_of(self, token_id: int) -> str:
        raw = self.bytes_of(token_id)
        if raw is None:
            return f"token_id:{token_id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self.bytes_of(token_id)
        return {
            "token": self.name_of(token_id),
            "logprob": finite(logprob),
            "bytes": None if raw is None else list(raw),
        }


def finite(logprob: float) -> float:
    """A number that JSON can carry."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def chat_logprobs(delta: Delta, names: TokenNames) -> Json:
    """`choices[].logprobs` of a chat."""
    content: list[Json] = []
    for index, (token_id, logprob) in enumerate(zip(delta.token_ids, delta.logprobs, strict=True)):
        likeliest = delta.top_logprobs[index] if delta.top_logprobs else ()
        entry = names.entry(token_id, logprob)
        entry["top_logprobs"] = [names.entry(*pair) for pair in likeliest]
        content.append(entry)
    return {"content": content, "refusal": None}


@dataclass(slots=True)
class CompletionLogprobs:
    """`choices[].logprobs` of a completion; remembers how far the text of one choice has come."""

    names: TokenNames
    num_top: int
    offset: int = 0
    """Characters before the next token."""
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def take(self, delta: Delta) -> Json:
        offsets: list[int] = []
        for token_id in delta.token_ids:
            offsets.append(self.offset)
            self.offset += len(self._decoder.decode(self.names.bytes_of(token_id) or b""))
        return {
            "tokens": [self.names.name_of(token_id) for token_id in delta.token_ids],
            "token_logprobs": [finite(logprob) for logprob in delta.logprobs],
            "top_logprobs": self._top(delta) if self.num_top else None,
            "text_offset": offsets,
        }

    def _top(self, delta: Delta) -> list[dict[str, float]]:
        """The likeliest tokens, and the sampled one beside them."""
        sampled = list(zip(delta.token_ids, delta.logprobs, strict=True))
        likeliest = delta.top_logprobs or [()] * len(sampled)
        top: list[dict[str, float]] = []
        for pairs, own in zip(likeliest, sampled, strict=True):
            named: dict[str, float] = {}
            for token_id, logprob in (*pairs, own):
                named.setdefault(self.names.name_of(token_id), finite(logprob))
            top.append(named)
        return top
