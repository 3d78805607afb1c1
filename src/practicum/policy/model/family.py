"""What a Hugging Face `config.json` says, as a `Shape`; and which models run here at all.

The one thing to know: `FAMILIES` is the list, and each entry says only how the family differs from
Llama. Whatever would make our decoder compute something else than the folder's author meant (other
families, activations, rotary tables that change with length) is refused by name.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

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

from practicum.errors import UsageError
from practicum.policy.model.ops import Activation
from practicum.policy.model.rotary import context_length, rotary_table
from practicum.policy.model.shape import Biases, Experts, LayerShape, Norms, Shape

Json = dict[str, Any]

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True, slots=True)
class Family:
    """One value of `model_type`."""

    config: Callable[..., Any]
    """Its configuration class in transformers, which knows its defaults and older keys"""
    windows: Literal["none", "everywhere", "by_layer"]
    """Which layers obey `sliding_window`; `by_layer` is as `layer_types` says, if it is there"""
    differs: Callable[[Any, Shape], Shape]
    """Turns the shape of a Llama with these sizes into the family's"""


def _llama(parsed: Any, shape: Shape) -> Shape:
    own = bool(parsed.attention_bias)
    return replace(shape, biases=Biases(own, own, bool(parsed.mlp_bias)))


def _smollm3(parsed: Any, shape: Shape) -> Shape:
    layers = zip(shape.layers, parsed.no_rope_layers, strict=False)
    kinds = tuple(kind if rotates else replace(kind, rotary=None) for kind, rotates in layers)
    return replace(_llama(parsed, shape), layers=kinds)


def _qwen2(parsed: Any, shape: Shape) -> Shape:
    del parsed
    return replace(shape, biases=Biases(qkv=True))


def _qwen3(parsed: Any, shape: Shape) -> Shape:
    own = bool(parsed.attention_bias)
    return replace(shape, biases=Biases(own, own), norms=replace(shape.norms, query_key=True))


def _mistral(parsed: Any, shape: Shape) -> Shape:
    del parsed
    return shape


def _mixtral(parsed: Any, shape: Shape) -> Shape:
    experts = Experts(
        count=parsed.num_local_experts,
        top_k=parsed.num_experts_per_tok,
        intermediate_size=parsed.intermediate_size,
        normalise=True,
    )
    layers = tuple(replace(kind, sparse=True) for kind in shape.layers)
    return replace(shape, experts=experts, layers=layers)


def _qwen3_moe(parsed: Any, shape: Shape) -> Shape:
    experts = Experts(
        count=parsed.num_experts,
        top_k=parsed.num_experts_per_tok,
        intermediate_size=parsed.moe_intermediate_size,
        normalise=bool(parsed.norm_topk_prob),
    )
    step, dense = parsed.decoder_sparse_step, parsed.mlp_only_layers
    layers = tuple(
        replace(kind, sparse=index not in dense and (index + 1) % step == 0)
        for index, kind in enumerate(shape.layers)
    )
    return replace(_qwen3(parsed, shape), experts=experts, layers=layers)


def _gemma2(parsed: Any, shape: Shape) -> Shape:
    if parsed.use_bidirectional_attention:
        raise ValueError("use_bidirectional_attention is set, and only causal attention runs")
    own = bool(parsed.attention_bias)
    return replace(
        shape,
        biases=Biases(own, own),
        norms=replace(shape.norms, plus_one=True, sandwich=True),
        attention_scale=parsed.query_pre_attn_scalar**-0.5,
        attention_softcap=parsed.attn_logit_softcapping,
        logit_softcap=parsed.final_logit_softcapping,
        embedding_scale=shape.hidden_size**0.5,
    )


def _gemma3(parsed: Any, shape: Shape) -> Shape:
    shape = _gemma2(parsed, shape)
    if shape.attention_softcap is not None:
        raise ValueError("attn_logit_softcapping is set, which Gemma 3 does not have")
    return replace(shape, norms=replace(shape.norms, query_key=True))


FAMILIES: Mapping[str, Family] = {
    "llama": Family(LlamaConfig, "none", _llama),
    "smollm3": Family(SmolLM3Config, "by_layer", _smollm3),
    "qwen2": Family(Qwen2Config, "by_layer", _qwen2),
    "qwen3": Family(Qwen3Config, "by_layer", _qwen3),
    "qwen3_moe": Family(Qwen3MoeConfig, "everywhere", _qwen3_moe),
    "mistral": Family(MistralConfig, "by_layer", _mistral),
    "mixtral": Family(MixtralConfig, "everywhere", _mixtral),
    "gemma2": Family(Gemma2Config, "by_layer", _gemma2),
    "gemma3_text": Family(Gemma3TextConfig, "by_layer", _gemma3),
}
"""Values of `model_type` that run."""


def read_json(path: Path) -> Json:
    """A JSON object from a file. Raises UsageError if it is unreadable or no object."""
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} should hold a JSON object, not a {type(content).__name__}")
    return cast(Json, content)


def read_config(folder: Path) -> Json:
    """The folder's `config.json`. Raises UsageError if there is none."""
    if not folder.is_dir():
        raise UsageError(f"there is no model folder {folder}")
    path = folder / "config.json"
    if not path.exists():
        raise UsageError(
            f"{folder} has no config.json; a model is a Hugging Face folder with config.json, "
            "tokenizer files and *.safetensors"
        )
    return read_json(path)


def shape_from_config(config: Mapping[str, Any], where: str = "config.json") -> Shape:
    """The model that `config` describes, in its current or older keys.

    Raises UsageError naming the key for anything that our decoder does not compute.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UsageError(
            f"{where}: model_type is {name!r}, which our engine does not run; it runs "
            f"{', '.join(FAMILIES)}. For other families install 'practicum[vllm]' and choose the "
            "vLLM adapter"
        )
    if config.get("quantization_config"):
        raise UsageError(f"{where}: the weights are quantised; use the unquantised model")
    try:
        given = {key: value for key, value in config.items() if key != "model_type"}
        parsed = FAMILIES[name].config(**copy.deepcopy(given))  # it completes what it is given
        return FAMILIES[name].differs(parsed, _as_llama(parsed, name, where))
    except UsageError:
        raise
    except Exception as error:  # transformers has its own strict validation, with its own types
        raise UsageError(f"{where} does not describe a {name} model: {error}") from error


def _as_llama(parsed: Any, family: str, where: str) -> Shape:
    """What all families have in common, and the windows and rotary tables of their layers."""
    parsed.head_dim = getattr(parsed, "head_dim", None) or (
        parsed.hidden_size // parsed.num_attention_heads
    )
    # Gemma 3 rotates by another table where it looks at a window.
    by_type = "sliding_attention" in parsed.rope_parameters
    types = _layer_types(parsed, family, where)
    tables = tuple(sorted(set(types))) if by_type else (None,)
    return Shape(
        vocab_size=parsed.vocab_size,
        hidden_size=parsed.hidden_size,
        num_heads=parsed.num_attention_heads,
        num_kv_heads=parsed.num_key_value_heads,
        head_size=parsed.head_dim,
        intermediate_size=parsed.intermediate_size,
        context_length=context_length(parsed, tables),
        tied_head=bool(parsed.tie_word_embeddings),
        layers=tuple(
            LayerShape(
                rotary=tables.index(kind) if by_type else 0,
                window=parsed.sliding_window if kind == "sliding_attention" else None,
            )
            for kind in types
        ),
        rotaries=tuple(rotary_table(parsed, parsed.head_dim, table, where) for table in tables),
        norms=Norms(parsed.rms_norm_eps),
        activation=_activation(parsed, where),
        family=family,
    )


def _layer_types(parsed: Any, family: str, where: str) -> list[str]:
    """`full_attention` or `sliding_attention` for every layer."""
    windows, num_layers = FAMILIES[family].windows, int(parsed.num_hidden_layers)
    window = None if windows == "none" else parsed.sliding_window
    declared = getattr(parsed, "layer_types", None) if windows == "by_layer" else None
    types: list[str] = (
        declared or ["full_attention" if window is None else "sliding_attention"] * num_layers
    )
    if unknown := sorted(set(types) - {"full_attention", "sliding_attention"}):
        raise UsageError(f"{where}: layer_types holds {unknown[0]!r}, which does not run")
    if len(types) != num_layers:
        raise UsageError(f"{where}: {len(types)} layer_types for {num_layers} layers")
    if "sliding_attention" in types and not (isinstance(window, int) and window > 0):
        raise UsageError(f"{where}: layers slide, but sliding_window is {window!r}")
    return types


def _activation(parsed: Any, where: str) -> Activation:
    key = "hidden_activation" if hasattr(parsed, "hidden_activation") else "hidden_act"
    name = getattr(parsed, key)
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UsageError(f"{where}: {key} is {name!r}; these run: {known}")
    return ACTIVATIONS[name]
