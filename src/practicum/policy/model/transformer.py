"""The decoder of every family, written once for rollout, scoring and training.

The one thing to know: the transformer holds no keys and no masks. A layer reaches earlier tokens
through a `Memory` that the caller brings (pages in the engine, a forest of prefixes in training),
so what surrounds attention is the same code, and the same bits, on both sides.

All parameters have the model's dtype. The residual stream, the results of matrix products and the
logits are float32 (or wider): that costs no time and halves what is lost to rounding.

Shapes: T packed tokens, D hidden, H query heads, K key-value heads, C head size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from practicum.policy.model import ops
from practicum.policy.model.experts import mix
from practicum.policy.model.products import widen
from practicum.policy.model.shape import AttentionRule, Shape


class Memory(Protocol):
    """How attention reaches the tokens before."""

    def attend(
        self, layer: int, query_THC: Tensor, key_TKC: Tensor, value_TKC: Tensor, rule: AttentionRule
    ) -> Tensor:
        """What every token reads from itself and the tokens before it, [T, H, C].

        All tensors, the result too, are of the model's dtype; queries and keys are rotated.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of some positions, [T, 1, C] each, for every rotary table of a model."""

    tables: tuple[tuple[Tensor, Tensor], ...]

    def __call__(self, x_TNC: Tensor, table: int | None) -> Tensor:
        return x_TNC if table is None else ops.rotate(x_TNC, *self.tables[table])


class Layer(nn.Module):
    """One decoder block. `project` and `finish` surround an attention that the caller chooses."""

    def __init__(self, shape: Shape, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        self.index = index
        self.kind = shape.layers[index]
        self.rule = shape.rule(index)

        def new(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(size, dtype=dtype))

        hidden, biases, norms = shape.hidden_size, shape.biases, shape.norms
        query, total = shape.query_size, shape.query_size + 2 * shape.key_size
        experts = shape.experts if self.kind.sparse else None
        copies = (experts.count,) if experts else ()
        inner = experts.intermediate_size if experts else shape.intermediate_size
        mlp_biases = biases.mlp and not experts
        self.attention_norm = new(hidden)
        self.qkv = new(total, hidden)
        self.qkv_bias = new(total) if biases.qkv else None
        self.query_norm = new(shape.head_size) if norms.query_key else None
        self.key_norm = new(shape.head_size) if norms.query_key else None
        self.output = new(hidden, query)
        self.output_bias = new(hidden) if biases.output else None
        self.attention_post_norm = new(hidden) if norms.sandwich else None
        self.mlp_norm = new(hidden)
        self.router = new(experts.count, hidden) if experts else None
        self.gate_up = new(*copies, 2 * inner, hidden)
        self.gate_up_bias = new(2 * inner) if mlp_biases else None
        self.down = new(*copies, hidden, inner)
        self.down_bias = new(hidden) if mlp_biases else None
        self.mlp_post_norm = new(hidden) if norms.sandwich else None

    def project(self, x_TD: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, C], keys and values [T, K, C]: rotated, in the model's dtype."""
        shape = self.shape
        num_query, num_kv = shape.num_heads, shape.num_kv_heads
        qkv = ops.linear(self._norm(x_TD, self.attention_norm), self.qkv, self.qkv_bias)
        qkv_TNC = qkv.contiguous().unflatten(-1, (num_query + 2 * num_kv, shape.head_size))
        query_key, value = qkv_TNC.split((num_query + num_kv, num_kv), dim=-2)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = query_key.split((num_query, num_kv), dim=-2)
            normed = self._norm(query, self.query_norm), self._norm(key, self.key_norm)
            query_key = widen(torch.cat(normed, dim=-2))
        query_key = rotation(query_key, self.kind.rotary).to(self.qkv.dtype)
        query, key = query_key.split((num_query, num_kv), dim=-2)
        return query, key, value.to(self.qkv.dtype)

    def finish(self, x_TD: Tensor, attended_THC: Tensor) -> Tensor:
        """Output projection and MLP, each added to the residual stream."""
        attended = attended_THC.flatten(-2).to(self.output.dtype)
        added_TD = ops.linear(attended, self.output, self.output_bias)
        if self.attention_post_norm is not None:
            added_TD = self._norm(added_TD, self.attention_post_norm)
        x_TD = x_TD + added_TD
        added_TD = self._mlp(self._norm(x_TD, self.mlp_norm))
        if self.mlp_post_norm is not None:
            added_TD = self._norm(added_TD, self.mlp_post_norm)
        return x_TD + added_TD

    def _mlp(self, normed_TD: Tensor) -> Tensor:
        activation = self.shape.activation
        if self.router is not None:
            assert self.shape.experts is not None
            experts = self.shape.experts
            return mix(normed_TD, self.router, self.gate_up, self.down, experts, activation)
        gate_up = ops.linear(normed_TD, self.gate_up, self.gate_up_bias)
        gated = ops.gate(gate_up, activation, self.down.dtype)
        return ops.linear(gated, self.down, self.down_bias)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        norms = self.shape.norms
        return ops.rms_norm(x, weight, norms.eps, plus_one=norms.plus_one)


class Transformer(nn.Module):
    """The decoder: `forward` to hidden states, `logits` from them."""

    frequencies: Tensor

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape = shape
        self.dtype = dtype
        size = (shape.vocab_size, shape.hidden_size)
        self.embedding = nn.Parameter(torch.empty(size, dtype=dtype))
        self.layers = nn.ModuleList(Layer(shape, i, dtype) for i in range(shape.num_layers))
        self.norm = nn.Parameter(torch.empty(shape.hidden_size, dtype=dtype))
        self.untied_head = None if shape.tied_head else nn.Parameter(torch.empty(size, dtype=dtype))
        # Gemma was trained with a scale that is rounded to the weights' precision.
        self._embedding_scale = float(torch.tensor(shape.embedding_scale, dtype=dtype))
        tables = torch.tensor([rotary.inverse_frequencies for rotary in shape.rotaries])
        self.register_buffer("frequencies", tables, persistent=False)  # [tables, C / 2]

    @property
    def head(self) -> Tensor:
        """[V, D], of the model's dtype."""
        return self.embedding if self.untied_head is None else self.untied_head

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """The residual stream's beginning, at least float32."""
        x_TD = widen(F.embedding(token_ids_T, self.embedding))
        return x_TD if self._embedding_scale == 1.0 else x_TD * self._embedding_scale

    def rotation(self, positions_T: Tensor) -> Rotation:
        wide = torch.promote_types(self.dtype, torch.float32)
        tables: list[tuple[Tensor, Tensor]] = []
        for rotary, frequencies in zip(self.shape.rotaries, self.frequencies, strict=True):
            half = positions_T[:, None, None].float() * frequencies
            angles = torch.cat((half, half), dim=-1).to(wide)
            tables.append((angles.cos() * rotary.scale, angles.sin() * rotary.scale))
        return Rotation(tuple(tables))

    def final_norm(self, x_TD: Tensor) -> Tensor:
        """Hidden states as the head reads them, in the model's dtype."""
        norms = self.shape.norms
        return ops.rms_norm(x_TD, self.norm, norms.eps, plus_one=norms.plus_one)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """[N, V], at least float32."""
        logits_NV = ops.linear(hidden_ND, self.head)
        cap = self.shape.logit_softcap
        return logits_NV if cap is None else ops.softcap(logits_NV, cap)

    def forward(self, token_ids_T: Tensor, positions_T: Tensor, memory: Memory) -> Tensor:
        """Final hidden states [T, D], in the model's dtype, as the head reads them."""
        x_TD = self.embed(token_ids_T)
        rotation = self.rotation(positions_T)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            query, key, value = layer.project(x_TD, rotation)
            attended = memory.attend(layer.index, query, key, value, layer.rule)
            x_TD = layer.finish(x_TD, attended)
        return self.final_norm(x_TD)
