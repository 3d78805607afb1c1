"""From distributions to tokens: every request's next token, whatever it asked for, in one call.

Most requests sample from the model's own distribution, all of those at once. A request with
penalties, a constraint or truncation bends a copy of its own row, in the order that `Sampling`
gives, and draws from that; nobody else pays for it. A draw's result depends on its row and its own
arguments alone, bit for bit.

Shapes: N rows, V vocabulary, S bent rows, M draws (several can be from one row).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from practicum.policy.engine.penalties import Seen, penalise
from practicum.policy.engine.truncation import Row, likeliest, truncate, truncates
from practicum.policy.model.head import Distribution, summarised
from practicum.sampling import Sampling

NOTHING = -1
"""Drawn where penalties and constraint together leave no token that could be sampled."""

LEAST_UNIFORM = 2.0**-54
"""Taken for 0, the only uniform below it: so a token must have a weight that counts in float64."""

TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to sample."""

    row: int
    """Of the distribution, which is at the sampling's temperature there, at 1 if that is greedy."""
    uniform: float
    sampling: Sampling
    seen: Seen | None = None
    """What penalties count; None only if there are none."""
    allowed_V: npt.NDArray[np.bool_] | None = None
    """Which tokens the request's constraint allows next; None if it has none."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was sampled, one entry per draw."""

    token_ids: list[int]
    logprobs: list[float]
    """In the model's own distribution at the draw's temperature (1 if greedy)."""
    log_kept_mass: list[float]
    """`logprob - log_kept_mass` is the log-prob in the distribution that was drawn from: 0 in the
    plain case; for constraint and truncation what they kept of the probability; with penalties or a
    bias the ratio of both probabilities of this token, which can be above 1."""
    top_logprobs: list[TopLogprobs]
    """The likeliest tokens of the model's own distribution, as many as the sampling asks for."""


def draw(model: Distribution, draws: Sequence[Draw]) -> Drawn:
    """A token for every draw. Leaves the distribution as it is.

    Raises FloatingPointError if a row has no distribution (NaN, infinity, or nothing possible).
    """
    device = model.logits.device
    rows_M = torch.tensor([one.row for one in draws], dtype=torch.int64, device=device)
    if not bool(model.log_total[rows_M].isfinite().all()):
        raise FloatingPointError("logits are not finite")
    token_ids_M = _tokens(model, rows_M, draws)
    logprobs_M = model.logprobs(rows_M, token_ids_M)
    sampled_M = logprobs_M.clone()
    if bending := [index for index, one in enumerate(draws) if _bends(one)]:
        bent_ids_S, bent_logprobs_S = _draw_bent(model, [draws[index] for index in bending])
        token_ids_M[bending] = bent_ids_S.to(device)
        sampled_M[bending] = bent_logprobs_S.to(device)
        logprobs_M = model.logprobs(rows_M, token_ids_M.clamp_min(0))
    return Drawn(
        token_ids_M.tolist(),
        logprobs_M.tolist(),
        torch.where(token_ids_M == NOTHING, 0.0, logprobs_M - sampled_M).tolist(),
        [_top_logprobs(model, one) if one.sampling.top_logprobs else () for one in draws],
    )


def _tokens(source: Distribution, rows_M: Tensor, draws: Sequence[Draw]) -> Tensor:
    uniforms_M = torch.tensor(
        [one.uniform for one in draws], dtype=torch.float64, device=rows_M.device
    )
    token_ids_M = source.draw(rows_M, uniforms_M.clamp_min_(LEAST_UNIFORM))
    if greedy := [index for index, one in enumerate(draws) if one.sampling.temperature == 0.0]:
        token_ids_M[greedy] = source.likeliest(rows_M[greedy])
    return token_ids_M


def _draw_bent(model: Distribution, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
    """Tokens after penalties, constraint and truncation, and their log-probs there; on the host."""
    first: dict[Hashable, Draw] = {}
    number: dict[Hashable, int] = {}
    rows: list[int] = []
    for one in draws:
        key = _bent_by(one)
        first.setdefault(key, one)
        rows.append(number.setdefault(key, len(number)))
    some = torch.tensor([one.row for one in first.values()], device=model.logits.device)
    bent_SV = model.logits.index_select(0, some).float().cpu()
    rows_V = zip(bent_SV.numpy(), first.values(), strict=True)
    possible_S = torch.tensor([_bend(logits_V, one) for logits_V, one in rows_V])
    bent_SV[~possible_S] = 0.0  # drawn from like the others, and then not used
    bent, rows_M = summarised(bent_SV), torch.tensor(rows)
    token_ids_M = _tokens(bent, rows_M, draws)
    logprobs_M = bent.logprobs(rows_M, token_ids_M)
    return torch.where(possible_S[rows_M], token_ids_M, NOTHING), logprobs_M


def _bends(one: Draw) -> bool:
    sampling = one.sampling
    penalises = one.seen is not None or bool(sampling.logit_bias)
    return penalises or one.allowed_V is not None or truncates(sampling)


def _bent_by(one: Draw) -> Hashable:
    """Draws for which this is equal are from the same distribution."""
    s = one.sampling
    penalties = (s.repetition_penalty, s.presence_penalty, s.frequency_penalty, s.logit_bias)
    cuts = (s.temperature, s.top_k, s.top_p, s.min_p)
    return one.row, penalties, id(one.seen), id(one.allowed_V), cuts


def _bend(logits_V: Row, one: Draw) -> bool:
    """Change a row of logits over the temperature, in place; whether a token remains."""
    temperature = np.float32(one.sampling.temperature or 1.0)
    if one.seen is not None or one.sampling.logit_bias:
        logits_V *= temperature  # penalties are in units of the model's logits
        penalise(logits_V, one.sampling, one.seen)
        logits_V /= temperature
    if one.allowed_V is not None:
        logits_V[~one.allowed_V] = -np.inf
    possible = bool(logits_V.max() > -np.inf)
    if possible and truncates(one.sampling):
        truncate(logits_V, one.sampling)
    return possible


def _top_logprobs(model: Distribution, one: Draw) -> TopLogprobs:
    device = model.logits.device
    ids = likeliest(model.logits[one.row].float().cpu().numpy(), one.sampling.top_logprobs)
    ids_K = torch.from_numpy(ids).to(device)  # pyright: ignore[reportUnknownMemberType]
    logprobs_K = model.logprobs(torch.full_like(ids_K, one.row), ids_K)
    return tuple(zip(ids_K.tolist(), logprobs_K.tolist(), strict=True))
