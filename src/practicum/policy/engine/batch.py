"""One batch from prompts to completions: prefill once, then step until every request has ended.

Prompts go through the network as one forest. After that every step is: sample from each row, fork
and compact the rows, run one token per row. The lock is held while the network runs and free
between steps; there a trainer may put new weights in. Keys of earlier tokens stay as they were.

Shapes: N rows, P prompts, V vocabulary, T distinct prompt tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.errors import PolicyDead
from practicum.policy.engine.cache import Cache
from practicum.policy.engine.rows import Request, Row, arrange
from practicum.policy.engine.sampling import all_finite, sample
from practicum.policy.engine.stats import Stats
from practicum.policy.model.forest import plant
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Layer, Transformer
from practicum.protocols import Completion
from practicum.types import WeightVersion

Ended = tuple[Request, Completion]


@dataclass(frozen=True, slots=True)
class Host:
    """What a batch runs on, and whom it tells."""

    model: Transformer
    tokens: Tokens
    lock: AbstractContextManager[object]
    """Held while the weights are read."""
    version: Callable[[], WeightVersion]
    """Of the weights now; asked with the lock held."""
    record: Callable[[Stats], None]
    """Takes what each step cost, before the completions that ended in it."""
    finish: Callable[[Request, Completion], None]
    """Takes each completion as soon as it has ended."""


@torch.inference_mode()
def run_batch(host: Host, requests: Sequence[Request]) -> None:
    """Complete all requests. Raises PolicyDead if the model no longer gives a distribution."""
    clock = time.perf_counter()
    prompts = sorted({request.prompt_ids for request in requests})
    number = {prompt: index for index, prompt in enumerate(prompts)}
    rows = [Row(index, -1, []) for index in range(len(prompts))]
    for request in requests:
        rows[number[request.prompt_ids]].requests.append(request)
    with host.lock:
        cache, logits_NV, num_computed = _prefill(host.model, prompts, len(requests))
        version = host.version()
    started, clock = clock, time.perf_counter()
    host.record(
        Stats(
            requests=len(requests),
            prompt_tokens=sum(len(request.prompt_ids) for request in requests),
            computed_prompt_tokens=num_computed,
            prefill_s=clock - started,
        )
    )
    while rows:
        num_samples = sum(len(row.requests) for row in rows)
        rows, ended = _advance(host, cache, rows, logits_NV, version)
        if rows:
            with host.lock:
                logits_NV = _step(host.model, cache, rows)
                version = host.version()
        started, clock = clock, time.perf_counter()
        host.record(
            Stats(
                sampled_tokens=num_samples,
                decode_steps=1 if rows else 0,
                decode_rows=len(rows),
                decode_s=clock - started,
            )
        )
        for request, completion in ended:
            host.finish(request, completion)


def _prefill(
    model: Transformer, prompts: Sequence[Sequence[int]], max_rows: int
) -> tuple[Cache, Tensor, int]:
    """Keys and values of all prompts, the logits after each [P, V], and T."""
    forest = plant(prompts)
    packed: list[tuple[Tensor, Tensor]] = []
    hidden_TD = model(forest, packed)
    last = torch.tensor([int(path[-1]) for path in forest.paths])
    logits_PV = model.logits(hidden_TD.index_select(0, last))
    return Cache(model.shape, forest, packed, max_rows), logits_PV, len(forest)


def _step(model: Transformer, cache: Cache, rows: Sequence[Row]) -> Tensor:
    """Run the last token of every row; the logits after it, [N, V]."""
    prompt_N = torch.tensor([row.prompt for row in rows])
    x_ND = model.embed(torch.tensor([row.token_id for row in rows]))
    rotation = model.rotation(cache.lengths[prompt_N] + (cache.num_steps - 1))
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        query, key, value = layer.project(x_ND, rotation)
        x_ND = layer.finish(x_ND, cache.attend(index, query, key, value))
    return model.logits(model.final_norm(x_ND))


def _advance(
    host: Host, cache: Cache, rows: Sequence[Row], logits_NV: Tensor, version: WeightVersion
) -> tuple[list[Row], list[Ended]]:
    """Sample every request's next token and ready the cache: the rows that go on, and who ended."""
    if not all_finite(logits_NV):
        raise PolicyDead(f"the model's logits are not finite at version {version}")
    drawn = _sample(rows, logits_NV)
    ended: list[Ended] = []
    children: list[list[Row]] = []
    for row in rows:
        by_token: dict[int, Row] = {}
        for request in row.requests:
            token_id, logprob = drawn[request]
            done = request.push(token_id, logprob, version, host.tokens)
            if done is not None:
                ended.append((request, done))
            elif not request.abandoned:
                child = by_token.setdefault(token_id, Row(row.prompt, token_id, []))
                child.requests.append(request)
        children.append(list(by_token.values()))
    placed = arrange([len(of_row) for of_row in children])
    following = [children[parent][child] for parent, child in placed]
    if following:
        _forget_prompts(cache, following)
        cache.begin_step([parent for parent, _ in placed], [row.prompt for row in following])
    return following, ended


def _sample(rows: Sequence[Row], logits_NV: Tensor) -> dict[Request, tuple[int, float]]:
    """A token and its log-probability for every request."""
    draws = [(index, request) for index, row in enumerate(rows) for request in row.requests]
    token_ids, logprobs = sample(
        logits_NV,
        torch.tensor([index for index, _ in draws]),
        torch.tensor([r.sampling.temperature for _, r in draws], dtype=torch.float64),
        torch.tensor([r.next_uniform for _, r in draws], dtype=torch.float64),
    )
    values = zip(token_ids.tolist(), logprobs.tolist(), strict=True)
    return {request: value for (_, request), value in zip(draws, values, strict=True)}


def _forget_prompts(cache: Cache, rows: Sequence[Row]) -> None:
    """Drop the keys of ended prompts, once they are at least half: copying costs too."""
    live = sorted({row.prompt for row in rows})
    if 2 * len(live) > len(cache.lengths):
        return
    cache.keep_prompts(live)
    number = {prompt: index for index, prompt in enumerate(live)}
    for row in rows:
        row.prompt = number[row.prompt]
