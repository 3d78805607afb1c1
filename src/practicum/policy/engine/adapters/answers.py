"""From what an engine says to a `Completion`: stop reasons, weight versions, visible text.

All engines keep the tokens that completed a stop string or ended the text, as we do. Text is
decoded here from the tokens, so that it is the same as our own engine's for the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.errors import InfraError
from practicum.policy.engine.adapters.exactness import truncates
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Completion, Sampling
from practicum.types import StopReason

UNKNOWN = float("nan")
"""What an engine does not tell about a token. Whatever is computed with it shows."""

TopLogprobs = tuple[tuple[tuple[int, float], ...], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion in an engine's own terms."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish: str | None
    """`stop` or `length`; any other word means that the engine gave it up."""
    matched: int | str | None
    """The token or the string that it stopped at, if the engine says."""
    spans: Sequence[Mapping[str, Any]] | None
    """Weight versions of tokens [start, end); None if the engine does not report them."""
    top_logprobs: TopLogprobs = ()
    log_kept_mass: Sequence[float] = ()
    """Empty if the engine does not report it."""
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What the completion answers."""

    sampling: Sampling
    version: int
    """Of the weights when the request was sent."""
    fills_context: bool
    """Whether the last allowed token is also the last that the model can hold."""


def completion(answer: Answer, asked: Asked, tokens: Tokens, *, engine: str) -> Completion:
    """Raises InfraError for a completion that is none: given up, empty or without log-probs."""
    num_tokens, sampling = len(answer.token_ids), asked.sampling
    if answer.finish not in ("stop", "length"):
        raise InfraError(
            f"{engine} gave a completion up after {num_tokens} tokens (it says {answer.finish!r})"
        )
    if not num_tokens or num_tokens != len(answer.logprobs):
        raise InfraError(
            f"{engine} returned {num_tokens} tokens and {len(answer.logprobs)} log-probs"
        )
    if not all(map(math.isfinite, answer.logprobs)):
        raise InfraError(f"{engine} returned a log-prob that is not finite")
    reason = stop_reason(answer, asked)
    kept = answer.log_kept_mass
    if truncates(sampling) and not kept:
        kept = [UNKNOWN] * num_tokens
    return Completion(
        token_ids=tuple(answer.token_ids),
        logprobs=tuple(answer.logprobs),
        versions=token_versions(answer.spans, num_tokens, asked.version),
        text=visible_text(tokens, answer.token_ids, sampling, reason),
        stop_reason=reason,
        log_kept_mass=tuple(kept),
        top_logprobs=answer.top_logprobs,
        reused_tokens=answer.reused_tokens,
    )


def stop_reason(answer: Answer, asked: Asked) -> StopReason:
    if answer.finish == "stop":
        return StopReason.STOP_STRING if isinstance(answer.matched, str) else StopReason.EOS
    cut_short = len(answer.token_ids) < asked.sampling.max_new_tokens
    return StopReason.CONTEXT_END if asked.fills_context or cut_short else StopReason.MAX_TOKENS


def token_versions(
    spans: Sequence[Mapping[str, Any]] | None, num_tokens: int, known: int
) -> tuple[int, ...]:
    """The weight version of each token, from an engine's spans [start, end) with labels.

    `known` is the version when the request was sent. It stands for every label that we did not set,
    and for all tokens of an engine that reports no spans: an update may have come in between, and
    the older version is the one that staleness must be counted from.

    Example:
        token_versions([{"version": "7", "start": 0, "end": 2}], 2, known=6) == (7, 7)
    """
    versions = [known] * num_tokens
    for span in spans or ():
        label = str(span["version"])
        if label.isdecimal():
            start, end = int(span["start"]), min(int(span["end"]), num_tokens)
            versions[start:end] = [int(label)] * (end - start)
    assert len(versions) == num_tokens, "spans overlap the end of the completion"
    return tuple(versions)


def visible_text(
    tokens: Tokens, token_ids: Sequence[int], sampling: Sampling, reason: StopReason
) -> str:
    """The decoded completion without its EOS and without the stop string."""
    if reason is StopReason.EOS:
        return tokens.decode(token_ids[:-1])
    text = tokens.decode(token_ids)
    if reason is StopReason.STOP_STRING:
        places = [place for stop in sampling.stop if (place := text.find(stop)) >= 0]
        text = text[: min(places)] if places else text
    return text
