"""Runs a step on the model: moves pages, computes tokens, returns hidden states.

Keys and values are in a `PageStore`, exact or as a `KvPolicy` has them.

Shapes: T tokens of a step, N positions after which a token is sampled, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequence_
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.page_store import PageStore, StepPages
from practicum.policy.engine.step import Run, Step
from practicum.policy.model.head import Distribution, distribution
from practicum.policy.model.native import kernels
from practicum.policy.model.paged import Reading
from practicum.policy.model.precision import EXACT, Precision, lower
from practicum.policy.model.transformer import Layer, Rotation, Transformer


class Runner:
    """The model, the pool and the swap space of one engine."""

    def __init__(
        self,
        model: Transformer,
        num_pages: int,
        swap_folder: Path | None = None,
        kv: KvPolicy = KvPolicy(),
        num_exact: int | None = None,
        precision: Precision = EXACT,
    ) -> None:
        self._lowered = None if precision.exact else lower(model, precision)
        self.model = self._lowered.model if self._lowered else model
        self.store = PageStore(model.shape, num_pages, model.dtype, kv, num_exact, swap_folder)
        self.needed: Callable[[], Iterable[int]] = lambda: ()
        """Pages besides those of the step under way that must stay exact; see `PageStore`"""
        self._logits = torch.empty(0)
        self._fused = [_fusible(layer) for layer in model.layers if isinstance(layer, Layer)]

    def refresh(self) -> None:
        """The parameters have changed: make quantised copies anew, where there are some."""
        if self._lowered is not None:
            self._lowered.refresh()

    def run(self, step: Step) -> Tensor:
        """Final hidden states [N, D] after the last `num_logits` tokens of every run, in order."""

        def needed() -> Iterable[int]:
            yield from self.needed()
            for run in step.runs:
                yield from self.store.recent_pages(run.sequence.pages, run.first, run.num_tokens)
            yield from (source for source, _ in step.copies)

        for source, target in step.copies:
            self.store.copy(source, target, needed)
        for slot, page in step.swap_in:
            self.store.load(slot, page, needed)
        token_ids, reading = _lay_out(step.runs)
        x_TD = self._through_layers(token_ids, self.store.open(step.runs, reading, needed))
        return self.model.final_norm(x_TD.index_select(0, _wanted(step.runs)))

    def distribution(self, hidden_ND: Tensor, temperatures_N: Tensor) -> Distribution:
        """What the model says after each hidden state, until the next call."""
        model, num_logits = self.model, len(hidden_ND) * self.model.shape.vocab_size
        if len(self._logits) < num_logits:
            self._logits = torch.empty(num_logits)
        softcap = model.shape.logit_softcap
        return distribution(hidden_ND, model.head, temperatures_N, softcap, self._logits)

    def _through_layers(self, token_ids: Tensor, memory: StepPages) -> Tensor:
        model = self.model
        x_TD = model.embed(token_ids)
        rotation = model.rotation(memory.reading.positions)
        halves = [tuple(t.flatten(1).chunk(2, -1)[0].contiguous() for t in table)
                  for table in rotation.tables]  # fmt: skip
        for layer, fused in zip(model.layers, self._fused, strict=True):
            assert isinstance(layer, Layer)
            if fused:
                assert layer.kind.rotary is not None
                cos, sin = halves[layer.kind.rotary]
                _run_fused(layer, x_TD, cos, sin, memory)
            else:
                x_TD = _run_plain(layer, x_TD, rotation, memory)
        return x_TD


def _run_plain(layer: Layer, x_TD: Tensor, rotation: Rotation, memory: StepPages) -> Tensor:
    query, key, value = layer.project(x_TD, rotation)
    return layer.finish(x_TD, memory.attend(layer.index, query, key, value, layer.rule))


def _run_fused(layer: Layer, x_TD: Tensor, cos: Tensor, sin: Tensor, memory: StepPages) -> None:
    """The same bits in five kernels; the residual stream is changed in place."""
    shape, norms = layer.shape, layer.shape.norms
    eps, plus_one = norms.eps, norms.plus_one
    qkv = kernels.norm_linear(x_TD, layer.attention_norm, eps, plus_one, layer.qkv, layer.qkv_bias)
    query = kernels.rotate_and_put(
        qkv, cos, sin, shape.num_heads, shape.head_size, memory.exact(layer.index), memory.slots
    )
    attended = memory.read(layer.index, query, layer.rule)
    kernels.add_linear_(x_TD, attended.flatten(1), layer.output)
    kernels.add_mlp_(
        x_TD, layer.mlp_norm, eps, plus_one, layer.gate_up, layer.down, shape.activation
    )


def _fusible(layer: Layer) -> bool:
    shape = layer.shape
    plain = not (
        shape.norms.query_key or shape.norms.sandwich or shape.biases.output or shape.biases.mlp
    )
    return (
        plain
        and not layer.kind.sparse
        and layer.kind.rotary is not None
        and kernels.serves(
            layer.qkv.dtype, shape.hidden_size, shape.head_size, shape.intermediate_size
        )
    )


def _lay_out(runs: Sequence_[Run]) -> tuple[Tensor, Reading]:
    """The step's tokens one run after the other, and how they read."""
    counts = np.array([run.num_tokens for run in runs])
    firsts = np.array([run.first for run in runs])
    lengths = np.array([len(run.sequence.pages) for run in runs])
    ends = counts.cumsum()
    offsets = np.arange(ends[-1]) - (ends - counts).repeat(counts)
    token_ids: list[int] = []
    for run in runs:
        token_ids += run.token_ids
    tables = np.concatenate([np.frombuffer(run.sequence.pages, np.int32) for run in runs])
    reading = Reading(
        positions=torch.from_numpy(firsts.repeat(counts) + offsets),
        tables=torch.from_numpy(tables),
        starts=torch.from_numpy((lengths.cumsum() - lengths).repeat(counts)),
    )
    return torch.tensor(token_ids), reading


def _wanted(runs: Sequence_[Run]) -> Tensor:
    """int64 [N]: the last `num_logits` tokens of every run."""
    ends = np.cumsum([run.num_tokens for run in runs])
    numbers = [np.arange(end - run.num_logits, end) for end, run in zip(ends.tolist(), runs)]
    return torch.from_numpy(np.concatenate(numbers))
