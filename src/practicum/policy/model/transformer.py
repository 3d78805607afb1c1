"""A Llama-family decoder, written once for rollout, scoring and training.

Matrix products run in the model's dtype (bfloat16 on CPU); the residual stream, attention, the
output head and all log-probabilities in float32. A float32 residual stream costs no time and halves
what is lost to rounding. The embedding is kept in float32, so that a tied head is exact and its
master weight is the parameter itself.

Shapes: T packed tokens, D hidden, H query heads, K key-value heads, C head size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from practicum.policy.model.forest import Block, Forest


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that fixes the tensors of a model."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    context_length: int
    norm_eps: float
    tied_head: bool
    inverse_frequencies: tuple[float, ...]
    """Rotary frequencies, [head_size / 2]; scaling variants are already applied."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide by {self.num_kv_heads} KV heads"
            )
        assert len(self.inverse_frequencies) * 2 == self.head_size


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of some positions, [T, 1, C], in float32."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x_TNC: Tensor) -> Tensor:
        first, second = x_TNC.chunk(2, dim=-1)
        return x_TNC * self.cos + torch.cat((-second, first), dim=-1) * self.sin


def widen(x: Tensor) -> Tensor:
    """At least float32: half precision is widened, float64 stays (gradient checks run in it)."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class Layer(nn.Module):
    """One decoder block. `project` and `finish` surround an attention that the caller chooses."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query, key_value = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        self.attention_norm = nn.Parameter(torch.empty(shape.hidden_size))
        self.qkv = nn.Parameter(torch.empty(query + 2 * key_value, shape.hidden_size))
        self.output = nn.Parameter(torch.empty(shape.hidden_size, query))
        self.mlp_norm = nn.Parameter(torch.empty(shape.hidden_size))
        self.gate_up = nn.Parameter(torch.empty(2 * shape.intermediate_size, shape.hidden_size))
        self.down = nn.Parameter(torch.empty(shape.hidden_size, shape.intermediate_size))

    def project(self, x_TD: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, C], keys and values [T, K, C], rotated, at least float32."""
        shape = self.shape
        num_query, num_kv = shape.num_heads, shape.num_kv_heads
        normed_TD = _norm(x_TD, self.attention_norm, shape.norm_eps)
        qkv = F.linear(normed_TD.to(self.qkv.dtype), self.qkv)
        qkv_TNC = widen(qkv).unflatten(-1, (num_query + 2 * num_kv, shape.head_size))
        query, key, value = qkv_TNC.split((num_query, num_kv, num_kv), dim=-2)
        return rotation(query), rotation(key), value

    def finish(self, x_TD: Tensor, attended_THC: Tensor) -> Tensor:
        """Output projection and MLP, each added to the residual stream."""
        dtype = self.output.dtype
        x_TD = x_TD + F.linear(attended_THC.flatten(-2).to(dtype), self.output)
        normed_TD = _norm(x_TD, self.mlp_norm, self.shape.norm_eps)
        gate, up = F.linear(normed_TD.to(dtype), self.gate_up).chunk(2, dim=-1)
        return x_TD + F.linear(F.silu(gate) * up, self.down)


class Transformer(nn.Module):
    """The decoder. `forward` runs a whole forest; the engine steps through `layers` itself."""

    frequencies: Tensor

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape = shape
        self.dtype = dtype
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = nn.Parameter(torch.empty(shape.hidden_size))
        self.untied_head = (
            None if shape.tied_head else nn.Parameter(torch.empty_like(self.embedding))
        )
        self.register_buffer(
            "frequencies", torch.tensor(shape.inverse_frequencies), persistent=False
        )
        wide = torch.promote_types(dtype, torch.float32)
        for name, parameter in self.named_parameters():
            in_wide = name in ("embedding", "untied_head")
            parameter.data = torch.empty_like(parameter.data, dtype=wide if in_wide else dtype)

    @property
    def head(self) -> Tensor:
        """[V, D], float32."""
        return self.embedding if self.untied_head is None else self.untied_head

    def embed(self, token_ids: Tensor) -> Tensor:
        """The residual stream's beginning, at least float32."""
        return F.embedding(token_ids, self.embedding)

    def rotation(self, positions: Tensor) -> Rotation:
        angles = positions[:, None, None].float() * self.frequencies
        angles = torch.cat((angles, angles), dim=-1).to(
            torch.promote_types(self.dtype, torch.float32)
        )
        return Rotation(angles.cos(), angles.sin())

    def final_norm(self, x_TD: Tensor) -> Tensor:
        """Hidden states as the head reads them, at least float32."""
        return _norm(x_TD, self.norm, self.shape.norm_eps)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """[N, V], float32."""
        return F.linear(hidden_ND, self.head)

    def forward(self, forest: Forest, keep: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Final hidden states [T, D]; keys and values [T, K, C] of each layer go to `keep`."""
        x_TD = self.embed(forest.token_ids)
        rotation = self.rotation(forest.positions)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            query, key, value = layer.project(x_TD, rotation)
            if keep is not None:
                keep.append((key, value))
            x_TD = layer.finish(x_TD, attend(forest, query, key, value))
        return self.final_norm(x_TD)


def attend(forest: Forest, query_THC: Tensor, key_TKC: Tensor, value_TKC: Tensor) -> Tensor:
    """Attention of every token to its ancestors, [T, H, C]."""
    outputs = [_attend_block(block, query_THC, key_TKC, value_TKC) for block in forest.blocks]
    return torch.cat(outputs).index_select(0, forest.place)


def _attend_block(block: Block, query_THC: Tensor, key_TKC: Tensor, value_TKC: Tensor) -> Tensor:
    """Dense masked attention over padded trees, [R * L, H, C].

    The G query heads of a key-value head are laid side by side along the query axis: one product
    per key-value head instead of copied keys (torch's own grouped path is an order slower on CPU).
    """
    num_trees, longest = block.index.shape
    num_heads, head_size = query_THC.shape[1:]
    num_kv = key_TKC.shape[1]
    group = num_heads // num_kv
    index = block.index.flatten()
    query = query_THC.index_select(0, index).view(num_trees, longest, num_kv, group, head_size)
    query = query.permute(0, 2, 3, 1, 4).reshape(num_trees, num_kv, group * longest, head_size)
    key = key_TKC.index_select(0, index).view(num_trees, longest, num_kv, head_size).transpose(1, 2)
    value = value_TKC.index_select(0, index).view(num_trees, longest, num_kv, head_size)
    attended = F.scaled_dot_product_attention(
        query, key, value.transpose(1, 2), attn_mask=block.allowed.repeat(1, 1, group, 1)
    )
    attended = attended.view(num_trees, num_kv, group, longest, head_size).permute(0, 3, 1, 2, 4)
    return attended.reshape(num_trees * longest, num_heads, head_size)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)
