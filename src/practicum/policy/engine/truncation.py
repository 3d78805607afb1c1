"""Which tokens top-k, top-p and min-p keep, each of what the one before left.

Ties are broken by token id, the lower first, so what is kept never depends on how a sort works.
On one row at a time and on the host: NumPy selects and sorts many times as fast as PyTorch does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from practicum.sampling import Sampling

Row = npt.NDArray[np.float32]


def truncates(sampling: Sampling) -> bool:
    """Whether anything may be cut; greedy sampling takes a token that none of them would cut."""
    cuts = sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
    return cuts and sampling.temperature > 0.0


def truncate(logits_V: Row, sampling: Sampling) -> None:
    """Set the logits of tokens that are cut to minus infinity, in place.

    The logits are over the temperature already, and at least one is finite.
    """
    weights_V = np.exp(logits_V - logits_V.max())
    count = min(sampling.top_k, len(logits_V)) or len(logits_V)
    if sampling.top_p < 1.0:
        count = _fewest(weights_V, sampling.top_p, count)
    if count < len(logits_V):
        _keep_likeliest(logits_V, count)
    if sampling.min_p > 0.0:
        logits_V[weights_V < sampling.min_p] = -np.inf  # the likeliest token's weight is 1


def likeliest(logits_V: Row, count: int) -> npt.NDArray[np.int64]:
    """Ids of the `count` likeliest tokens, the likeliest first; of equal ones the lower ids."""
    count = min(count, len(logits_V))
    lowest = np.partition(logits_V, -count)[-count]
    ids = np.flatnonzero(logits_V >= lowest)  # by id, and a stable sort leaves equals so
    return ids[np.argsort(-logits_V[ids], kind="stable")][:count]


def _fewest(weights_V: Row, top_p: float, most: int) -> int:
    """How many of the `most` likeliest tokens hold `top_p` of the weight of those."""
    if most < len(weights_V):
        weights = np.partition(weights_V, -most)[-most:]
    else:
        # All lighter tokens together weigh less than what may be cut, so none of them is kept.
        cut = (1.0 - top_p) * weights_V.sum(dtype=np.float64) / len(weights_V)
        weights = weights_V[weights_V >= cut]
    total = (weights if most < len(weights_V) else weights_V).sum(dtype=np.float64)
    up_to = np.sort(weights)[::-1].cumsum(dtype=np.float64)
    return min(len(weights), 1 + int(np.count_nonzero(up_to < top_p * total)))


def _keep_likeliest(logits_V: Row, count: int) -> None:
    lowest = np.partition(logits_V, -count)[-count]
    kept = logits_V >= lowest
    if (surplus := int(np.count_nonzero(kept)) - count) > 0:
        kept[np.flatnonzero(logits_V == lowest)[-surplus:]] = False
    logits_V[~kept] = -np.inf
