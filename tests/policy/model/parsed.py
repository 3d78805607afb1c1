"""Shapes and rotary tables as transformers' own configuration classes and functions give them.

What `family.py` says is held to this, key by key and default by default.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from practicum.policy.model.family import ACTIVATIONS
from practicum.policy.model.shape import Biases, Experts, LayerShape, Norms, Rotary, Shape

CLASSES: Mapping[str, Callable[..., Any]] = {
    "llama": LlamaConfig,
    "smollm3": SmolLM3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3_moe": Qwen3MoeConfig,
    "mistral": MistralConfig,
    "mixtral": MixtralConfig,
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
}

WITHOUT_LAYER_TYPES = ("llama", "qwen3_moe", "mixtral")


def parsed(config: Mapping[str, Any]) -> Any:
    """The configuration object of transformers."""
    given = {key: value for key, value in config.items() if key != "model_type"}
    return CLASSES[config["model_type"]](**copy.deepcopy(given))


def parsed_shape(config: Mapping[str, Any]) -> Shape:
    """The shape that transformers' configuration object describes."""
    family, c = config["model_type"], parsed(config)
    head_size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    c.head_dim = head_size
    types = _layer_types(family, c)
    by_type = "sliding_attention" in c.rope_parameters
    tables = tuple(sorted(set(types))) if by_type else (None,)
    layers = tuple(
        LayerShape(
            rotary=tables.index(kind) if by_type else 0,
            window=c.sliding_window if kind == "sliding_attention" else None,
        )
        for kind in types
    )
    longest = _context_length(c, tables)
    layers = tuple(  # a window that holds the whole context is none
        replace(kind, window=None) if (kind.window or 0) >= longest else kind for kind in layers
    )
    shape = Shape(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        num_heads=c.num_attention_heads,
        num_kv_heads=c.num_key_value_heads,
        head_size=head_size,
        intermediate_size=c.intermediate_size,
        context_length=longest,
        tied_head=c.tie_word_embeddings,
        layers=layers,
        rotaries=tuple(parsed_table(c, table) for table in tables),
        norms=Norms(c.rms_norm_eps, query_key=family in ("qwen3", "qwen3_moe", "gemma3_text")),
        activation=ACTIVATIONS[getattr(c, "hidden_activation", None) or c.hidden_act],
        family=family,
    )
    if family in ("llama", "smollm3", "qwen3", "qwen3_moe", "gemma2", "gemma3_text"):
        own = c.attention_bias
        mlp = family in ("llama", "smollm3") and c.mlp_bias
        shape = replace(shape, biases=Biases(own, own, mlp))
    if family == "qwen2":
        shape = replace(shape, biases=Biases(qkv=True))
    if family == "smollm3":
        rotates = zip(layers, c.no_rope_layers, strict=False)
        kinds = tuple(kind if turns else replace(kind, rotary=None) for kind, turns in rotates)
        shape = replace(shape, layers=kinds)
    if family in ("mixtral", "qwen3_moe"):
        shape = _sparse(family, c, shape)
    if family in ("gemma2", "gemma3_text"):
        shape = replace(
            shape,
            norms=replace(shape.norms, plus_one=True, sandwich=True),
            attention_scale=c.query_pre_attn_scalar**-0.5,
            attention_softcap=c.attn_logit_softcapping,
            logit_softcap=c.final_logit_softcapping,
            embedding_scale=c.hidden_size**0.5,
        )
    return shape


def parsed_table(c: Any, layer_type: str | None = None) -> Rotary:
    """One rotary table, by transformers' functions; the plain one as its modules compute it."""
    parameters = c.rope_parameters if layer_type is None else c.rope_parameters[layer_type]
    if parameters["rope_type"] == "default":
        exponents = torch.arange(0, c.head_dim, 2, dtype=torch.int64).float() / c.head_dim
        return Rotary(tuple((1.0 / parameters["rope_theta"] ** exponents).tolist()))
    table, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](c, layer_type=layer_type)
    return Rotary(tuple(table.tolist()), float(scale))


def _layer_types(family: str, c: Any) -> list[str]:
    if family == "llama":
        return ["full_attention"] * c.num_hidden_layers
    declared = None if family in WITHOUT_LAYER_TYPES else getattr(c, "layer_types", None)
    kind = "full_attention" if c.sliding_window is None else "sliding_attention"
    return declared or [kind] * c.num_hidden_layers


def _context_length(c: Any, tables: tuple[str | None, ...]) -> int:
    lengths = [c.max_position_embeddings]
    for table in tables:
        one = c.rope_parameters if table is None else c.rope_parameters[table]
        if one["rope_type"] == "yarn":
            lengths.append(int(one["factor"] * one["original_max_position_embeddings"]))
    return max(lengths)


def _sparse(family: str, c: Any, shape: Shape) -> Shape:
    mixtral = family == "mixtral"
    experts = Experts(
        count=c.num_local_experts,
        top_k=c.num_experts_per_tok,
        intermediate_size=c.intermediate_size if mixtral else c.moe_intermediate_size,
        normalise=True if mixtral else c.norm_topk_prob,
    )
    layers = tuple(
        replace(
            kind,
            sparse=mixtral
            or (index not in c.mlp_only_layers and (index + 1) % c.decoder_sparse_step == 0),
        )
        for index, kind in enumerate(shape.layers)
    )
    return replace(shape, experts=experts, layers=layers)
