"""Penalties and biases: what is added to logits or scales them before anything else happens.

In this order: the repetition penalty of every token in prompt or completion, the presence and
frequency penalties of every token in the completion, then the bias of each token that has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from practicum.policy.engine.truncation import Row
from practicum.sampling import Sampling

LARGEST = 1e9
"""Logits end here either way, so that no penalty can make one infinite."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The tokens that penalties of one request count. Made by `seen_for`."""

    prompt_ids: frozenset[int]
    counts: Counter[int] = field(default_factory=Counter[int])
    """How often each token is in the completion."""

    def push(self, token_id: int) -> None:
        """Take a token into the completion."""
        self.counts[token_id] += 1

    def after(self, token_ids: Iterable[int]) -> Seen:
        """As it would be after some more tokens; for drafts that are not accepted yet."""
        return Seen(self.prompt_ids, self.counts + Counter(token_ids))


def seen_for(sampling: Sampling, prompt_ids: Sequence[int]) -> Seen | None:
    """What to count for a request; None if its sampling has no penalties."""
    if sampling.repetition_penalty != 1.0:
        return Seen(frozenset(prompt_ids))
    if sampling.presence_penalty or sampling.frequency_penalty:
        return Seen(frozenset())
    return None


def penalise(logits_V: Row, sampling: Sampling, seen: Seen | None) -> None:
    """Apply penalties and biases, in place."""
    if seen is not None and sampling.repetition_penalty != 1.0:
        ids = sorted(seen.prompt_ids | seen.counts.keys())
        old = logits_V[ids].astype(np.float64)
        rate = sampling.repetition_penalty
        logits_V[ids] = _within(np.where(old > 0, old / rate, old * rate))
    if seen is not None and (sampling.presence_penalty or sampling.frequency_penalty):
        ids = list(seen.counts)
        counts = np.array(list(seen.counts.values()), dtype=np.float64)
        cost = sampling.presence_penalty + sampling.frequency_penalty * counts
        logits_V[ids] = _within(logits_V[ids] - cost)
    if sampling.logit_bias:
        ids = [token_id for token_id, _ in sampling.logit_bias]
        bias = np.array([bias for _, bias in sampling.logit_bias])
        logits_V[ids] = _within(logits_V[ids] + bias)


def _within(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    return np.where(logits == -np.inf, logits, np.clip(logits, -LARGEST, LARGEST))
