"""What fixes the tensors and the arithmetic of a decoder, whatever its family.

The one thing to know: a `Shape` says everything, so two models with equal shapes compute the same
function of their weights. `family.py` reads it from a `config.json`; no other module asks for names
of families, except for the names of stored tensors (`layout.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from practicum.policy.model.ops import Activation


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """How one layer's queries read keys. Every query reads its own position and earlier ones."""

    scale: float
    """Of query times key"""
    softcap: float | None = None
    """Scores are squashed into (-softcap, softcap) before the softmax"""
    window: int | None = None
    """A query sees itself and the `window - 1` tokens before; None is all"""
    sinks: int = 0
    """The first tokens that stay visible beyond the window (StreamingLLM, 2309.17453)"""


@dataclass(frozen=True, slots=True)
class Rotary:
    """One rotary table; scaling variants (linear, YaRN, ...) are already applied."""

    inverse_frequencies: tuple[float, ...]
    """[head_size / 2]"""
    scale: float = 1.0
    """Of cosines and sines: YaRN's attention factor"""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """In what one layer may differ from another."""

    rotary: int | None = 0
    """Index of its table in `Shape.rotaries`; None rotates nothing"""
    window: int | None = None
    """See AttentionRule"""
    sparse: bool = False
    """Experts in place of one MLP"""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: every token goes to `top_k` of `count` MLPs, chosen by a router."""

    count: int
    top_k: int
    intermediate_size: int
    normalise: bool
    """Whether the weights of the chosen experts are scaled to a sum of 1"""

    def __post_init__(self) -> None:
        if not 0 < self.top_k <= self.count:
            raise ValueError(f"a token cannot go to {self.top_k} of {self.count} experts")


@dataclass(frozen=True, slots=True)
class Biases:
    """Which matrix products add a bias."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


@dataclass(frozen=True, slots=True)
class Norms:
    """Where the root-mean-square norms stand, and how they are stored."""

    eps: float
    plus_one: bool = False
    """Stored as the deviation from one (Gemma)"""
    query_key: bool = False
    """Over each head of queries and keys, before the rotation (Qwen3, Gemma 3)"""
    sandwich: bool = False
    """Also over what attention and MLP add to the residual stream (Gemma)"""


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that fixes the tensors and the arithmetic of a model.

    Example:
        A Llama with two layers: `layers=(LayerShape(), LayerShape())`, one table in `rotaries`,
        `norms=Norms(1e-5)` and defaults for the rest.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    context_length: int
    tied_head: bool
    layers: tuple[LayerShape, ...]
    rotaries: tuple[Rotary, ...]
    norms: Norms
    biases: Biases = Biases()
    activation: Activation = "silu"
    experts: Experts | None = None
    attention_scale: float | None = None
    """None is head_size ** -0.5"""
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    family: str = "llama"
    """As in `model_type`; decides the names of stored tensors"""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide by {self.num_kv_heads} KV heads"
            )
        assert all(len(r.inverse_frequencies) * 2 == self.head_size for r in self.rotaries)
        assert all(layer.rotary in (None, *range(len(self.rotaries))) for layer in self.layers)
        assert self.experts or not any(layer.sparse for layer in self.layers)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def key_size(self) -> int:
        """Of all keys of a token, and of all values."""
        return self.num_kv_heads * self.head_size

    def rule(self, layer: int) -> AttentionRule:
        scale = self.head_size**-0.5 if self.attention_scale is None else self.attention_scale
        return AttentionRule(scale, self.attention_softcap, self.layers[layer].window)
