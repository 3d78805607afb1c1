"""What a policy is asked for and what it gives back: one completion, whole or as it grows.

Log-probs are natural logarithms at the sampling temperature, before truncation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from practicum.types import StopReason


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that a completion must belong to; other tokens are never sampled."""

    kind: Literal["json_schema", "regex", "choice"]
    text: str
    """A JSON schema, a regular expression that the whole completion matches, or a JSON list of
    strings of which it is one."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one completion is sampled. The same seed gives the same tokens in any batch.

    The distribution is built in this order: penalties and bias on the logits, the constraint, the
    temperature, then `top_k`, `top_p` and `min_p`, each on what the one before left.
    """

    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy; the log-prob is then that of temperature 1."""
    stop: tuple[str, ...] = ()
    """Generation ends once the text contains one of these; the text is cut before it, the tokens
    that completed it are kept and trained on (the policy must learn to stop)."""
    seed: int = 0
    top_k: int = 0
    """Only the k likeliest tokens; 0 for all."""
    top_p: float = 1.0
    """Only the fewest likeliest tokens that hold this much probability."""
    min_p: float = 0.0
    """Only tokens at least this likely relative to the likeliest."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or completion."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token of the completion."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that it is in the completion."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    stop_token_ids: tuple[int, ...] = ()
    """End the completion like the model's own ends of text."""
    ignore_eos: bool = False
    """Go on after the model's ends of text; for benchmarks."""
    constraint: Constraint | None = None
    top_logprobs: int = 0
    """How many of the likeliest tokens to report beside each sampled one."""

    def __post_init__(self) -> None:
        def demand(ok: bool, name: str, wanted: str) -> None:
            if not ok:
                raise ValueError(f"{name} must be {wanted}, not {getattr(self, name)}")

        demand(self.max_new_tokens >= 1, "max_new_tokens", "at least 1")
        demand(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", ">= 0")
        demand(self.top_k >= 0, "top_k", "at least 1, or 0 for all")
        demand(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        demand(0 <= self.min_p <= 1, "min_p", "between 0 and 1")
        demand(0 < self.repetition_penalty < math.inf, "repetition_penalty", "finite and above 0")
        demand(math.isfinite(self.presence_penalty), "presence_penalty", "finite")
        demand(math.isfinite(self.frequency_penalty), "frequency_penalty", "finite")
        demand(not any(math.isnan(b) for _, b in self.logit_bias), "logit_bias", "without NaN")
        demand(0 <= self.top_logprobs <= 20, "top_logprobs", "between 0 and 20")


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns: exactly the sampled tokens and what is known of each."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log at the sampling temperature before truncation, one per token."""
    versions: tuple[int, ...]
    """Weight version that sampled each token."""
    text: str
    """Decoded, without EOS and without the stop string."""
    stop_reason: StopReason
    log_kept_mass: tuple[float, ...] = ()
    """Natural log of the probability that top-k, top-p and min-p kept, one per token (0 where
    nothing was cut; empty if nothing ever was): `logprob - log_kept_mass` is the log-prob after
    truncation."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each token the likeliest (token id, log-prob), as many as were asked for."""
    reused_tokens: int = field(default=0, compare=False)
    """Prompt tokens whose keys and values were there already; says nothing of the answer."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What was added to a completion. All deltas of a stream, joined, are the completion.

    Text may lag behind the tokens: a character whose bytes are not all there yet, or what could be
    the beginning of a stop string, comes with a later delta.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    """Never holds a broken character, never a part of a stop string."""
    logprobs: tuple[float, ...] = ()
    """One per token, as in `Completion`."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    stop_reason: StopReason | None = None
    """On the last delta of a stream, and on no other."""
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were there already; known from the first delta on."""

    @staticmethod
    def joined(deltas: Iterable[Delta]) -> Delta:
        """All of them as one.

        Example:
            Delta.joined([Delta((7,), "a"), Delta((8,), "b")]) == Delta((7, 8), "ab")
        """
        deltas = list(deltas)
        return Delta(
            token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
            text="".join(delta.text for delta in deltas),
            logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
            top_logprobs=tuple(chain.from_iterable(delta.top_logprobs for delta in deltas)),
            stop_reason=next((d.stop_reason for d in deltas if d.stop_reason is not None), None),
            reused_tokens=max((delta.reused_tokens for delta in deltas), default=0),
        )
