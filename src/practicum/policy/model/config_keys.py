"""The keys of a `config.json` that decide what a decoder computes, and what they mean if left out.

The one thing to know: a family's defaults are the keys it reads, and no other key can matter to it.
Values are those of the configuration classes in transformers, to which tests hold them.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from practicum.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What a `config.json` says, completed and of the right types.

    What a family does not read has the neutral value given here.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    """None is one for each head"""
    head_dim: int | None
    """None is `hidden_size / num_attention_heads`"""
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    hidden_act: str | None = None
    hidden_activation: str | None = None
    """Gemma's name for it"""

    rope_parameters: dict[str, Any] | None
    """Of the rotary table; `rotary_keys.py` reads it together with the five older keys"""
    rope_scaling: dict[str, Any] | None
    rope_theta: float | None
    rope_local_base_freq: float | None = None
    partial_rotary_factor: float | None
    original_max_position_embeddings: int | None
    no_rope_layers: list[int] | None = None
    """Zero for each layer that rotates nothing; None is every `no_rope_layer_interval`th"""
    no_rope_layer_interval: int = 4

    attention_bias: bool = False
    mlp_bias: bool = False

    sliding_window: int | None = None
    use_sliding_window: bool = True
    max_window_layers: int = 0
    """The first so many look at everything"""
    sliding_window_pattern: int = 2
    """Every so many-th looks at everything"""
    layer_types: list[str] | None = None
    use_bidirectional_attention: bool | None = None

    query_pre_attn_scalar: float = 1.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    """Every so many-th layer is sparse"""
    mlp_only_layers: list[int] | None = None
    """Indices of layers that are dense whatever the step says"""

    @property
    def window(self) -> int | None:
        """Of the layers that have one; None if none has."""
        return self.sliding_window if self.use_sliding_window else None


Defaults = Mapping[str, Any]
"""The keys that a family reads, and their values where a `config.json` leaves them out."""

COMMON: Defaults = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": None,
    "partial_rotary_factor": None,
    "original_max_position_embeddings": None,
}
LLAMA: Defaults = {
    **COMMON,
    "intermediate_size": 11_008,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
    "attention_bias": False,
    "mlp_bias": False,
}
SMOLLM3: Defaults = {
    **LLAMA,
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "sliding_window": None,
    "use_sliding_window": False,
    "layer_types": None,
}
QWEN2: Defaults = {
    **COMMON,
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "layer_types": None,
}
QWEN3: Defaults = {**QWEN2, "head_dim": 128, "attention_bias": False}
QWEN3_MOE: Defaults = {
    **COMMON,
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
MISTRAL: Defaults = {
    **COMMON,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "layer_types": None,
}
MIXTRAL: Defaults = {
    **COMMON,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
GEMMA2: Defaults = {
    **{key: value for key, value in COMMON.items() if key != "hidden_act"},
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": 4096,
    "layer_types": None,
    "query_pre_attn_scalar": 256.0,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "use_bidirectional_attention": None,
}
GEMMA3: Defaults = {
    **GEMMA2,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rope_local_base_freq": None,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}

OTHER_NAMES: Mapping[str, str] = {"num_experts": "num_local_experts"}
"""Keys that have a second name, in folders of either family of experts."""

POSITIVE = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size"),
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        "head_dim",
        *("max_position_embeddings", "original_max_position_embeddings"),
        *("rms_norm_eps", "query_pre_attn_scalar", "rope_theta", "rope_local_base_freq"),
        *("no_rope_layer_interval", "sliding_window_pattern", "decoder_sparse_step"),
    }
)
"""Keys whose values, where there are any, are above zero."""


MOST: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "num_experts", "num_experts_per_tok"), 1024),
    **dict.fromkeys(("vocab_size", "hidden_size", "head_dim"), 1 << 24),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), 1 << 24),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1 << 16),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), 1 << 31),
}
"""Bounds far above any model's, so that nothing is made for a number that is a mistake."""

MOST_NUMBER = 3e38
"""Of all others; about the largest float32."""


def read_keys(config: Mapping[str, Any], defaults: Defaults, where: str) -> Keys:
    """`config` completed by a family's defaults.

    Raises UsageError naming a key that holds another type than its own, or a number that cannot be.
    """
    values = {key: _given(config, key, default, where) for key, default in defaults.items()}
    for key, value in values.items():
        if not _is_a(_kinds()[key], value):
            raise UsageError(f"{where}: {key} is {value!r}; it should be {_worded(_kinds()[key])}")
        if key in POSITIVE and value is not None and not value > 0:
            raise UsageError(f"{where}: {key} is {value!r}; it should be above 0")
        most = MOST.get(key, MOST_NUMBER)
        if isinstance(value, int | float) and not abs(value) <= most:
            raise UsageError(
                f"{where}: {key} is {reprlib.repr(value)}; it should be at most {most}"
            )
    return Keys(**values)


def _given(config: Mapping[str, Any], key: str, default: Any, where: str) -> Any:
    value = config.get(key, default)
    other = OTHER_NAMES.get(key)
    if other is None or other not in config:
        return value
    if key in config and config[other] != value:
        raise UsageError(
            f"{where}: {key} is {value!r} and {other} is {config[other]!r}, which mean the same; "
            "leave one of them out"
        )
    return config[other]


@functools.cache
def _kinds() -> Mapping[str, Any]:
    """The type of each key."""
    return get_type_hints(Keys)


def _is_a(kind: Any, value: object) -> bool:
    """Whether a value out of JSON is of a type. A whole number may stand for any number."""
    if isinstance(kind, UnionType):
        return any(_is_a(one, value) for one in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is_a(get_args(kind)[0], item) for item in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _worded(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
    if isinstance(kind, UnionType):
        return " or ".join(_worded(one) for one in get_args(kind))
    if get_origin(kind) is list:
        return f"a list, each {_worded(get_args(kind)[0])}"
    return "an object" if get_origin(kind) is dict else words.get(kind, "null")
