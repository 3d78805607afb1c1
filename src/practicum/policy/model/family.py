"""What a Hugging Face `config.json` says, as a `Shape`; and which models run here at all.

The one thing to know: `FAMILIES` is the list, and each entry says only how the family differs from
Llama. Whatever would make our decoder compute something else than the folder's author meant (other
families, activations, rotary tables that change with length) is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from practicum.errors import UsageError
from practicum.policy.model.config_keys import (
    GEMMA2,
    GEMMA3,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    SMOLLM3,
    Defaults,
    Keys,
    read_keys,
)
from practicum.policy.model.ops import Activation
from practicum.policy.model.rotary import context_length, rotary_table
from practicum.policy.model.rotary_keys import WHOLE, WINDOWED, Bases, rotary_parameters
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

    defaults: Defaults
    """The keys it reads, and what they are where a folder leaves them out"""
    types: Callable[[Keys], list[str]]
    """The type of each layer, where `layer_types` does not say it"""
    differs: Callable[[Keys, Shape], Shape]
    """Turns the shape of a Llama with these sizes into the family's"""
    bases: Bases = 10_000.0
    """`rope_theta` where a folder leaves it out"""


def _whole(keys: Keys) -> list[str]:
    return [WHOLE] * keys.num_hidden_layers


def _windowed(keys: Keys) -> list[str]:
    return [WHOLE if keys.window is None else WINDOWED] * keys.num_hidden_layers


def _windowed_above(keys: Keys) -> list[str]:
    first = keys.max_window_layers
    return [kind if i >= first else WHOLE for i, kind in enumerate(_windowed(keys))]


def _windowed_but_every_nth(keys: Keys) -> list[str]:
    step = keys.sliding_window_pattern
    return [WINDOWED if (i + 1) % step else WHOLE for i in range(keys.num_hidden_layers)]


def _windowed_where_unrotated(keys: Keys) -> list[str]:
    types = _windowed(keys)
    return [WHOLE if turns else kind for kind, turns in zip(types, _rotates(keys), strict=True)]


def _rotates(keys: Keys) -> list[bool]:
    """Whether each layer rotates queries and keys."""
    listed, step = keys.no_rope_layers, keys.no_rope_layer_interval
    if listed is None:
        return [(index + 1) % step != 0 for index in range(keys.num_hidden_layers)]
    if len(listed) < keys.num_hidden_layers:
        raise ValueError(
            f"no_rope_layers has {len(listed)} entries for {keys.num_hidden_layers} layers"
        )
    return [bool(rotates) for rotates in listed[: keys.num_hidden_layers]]


def _llama(keys: Keys, shape: Shape) -> Shape:
    own = keys.attention_bias
    return replace(shape, biases=Biases(own, own, keys.mlp_bias))


def _smollm3(keys: Keys, shape: Shape) -> Shape:
    layers = zip(shape.layers, _rotates(keys), strict=True)
    kinds = tuple(kind if rotates else replace(kind, rotary=None) for kind, rotates in layers)
    return replace(_llama(keys, shape), layers=kinds)


def _qwen2(keys: Keys, shape: Shape) -> Shape:
    del keys
    return replace(shape, biases=Biases(qkv=True))


def _qwen3(keys: Keys, shape: Shape) -> Shape:
    own = keys.attention_bias
    return replace(shape, biases=Biases(own, own), norms=replace(shape.norms, query_key=True))


def _mistral(keys: Keys, shape: Shape) -> Shape:
    del keys
    return shape


def _mixtral(keys: Keys, shape: Shape) -> Shape:
    experts = Experts(
        count=keys.num_experts,
        top_k=keys.num_experts_per_tok,
        intermediate_size=keys.intermediate_size,
        normalise=True,
    )
    layers = tuple(replace(kind, sparse=True) for kind in shape.layers)
    return replace(shape, experts=experts, layers=layers)


def _qwen3_moe(keys: Keys, shape: Shape) -> Shape:
    experts = Experts(
        count=keys.num_experts,
        top_k=keys.num_experts_per_tok,
        intermediate_size=keys.moe_intermediate_size,
        normalise=keys.norm_topk_prob,
    )
    step, dense = keys.decoder_sparse_step, keys.mlp_only_layers or []
    layers = tuple(
        replace(kind, sparse=index not in dense and (index + 1) % step == 0)
        for index, kind in enumerate(shape.layers)
    )
    return replace(_qwen3(keys, shape), experts=experts, layers=layers)


def _gemma2(keys: Keys, shape: Shape) -> Shape:
    if keys.use_bidirectional_attention:
        raise ValueError("use_bidirectional_attention is set, and only causal attention runs")
    own = keys.attention_bias
    return replace(
        shape,
        biases=Biases(own, own),
        norms=replace(shape.norms, plus_one=True, sandwich=True),
        attention_scale=keys.query_pre_attn_scalar**-0.5,
        attention_softcap=keys.attn_logit_softcapping,
        logit_softcap=keys.final_logit_softcapping,
        embedding_scale=shape.hidden_size**0.5,
    )


def _gemma3(keys: Keys, shape: Shape) -> Shape:
    shape = _gemma2(keys, shape)
    if shape.attention_softcap is not None:
        raise ValueError("attn_logit_softcapping is set, which Gemma 3 does not have")
    return replace(shape, norms=replace(shape.norms, query_key=True))


FAMILIES: Mapping[str, Family] = {
    "llama": Family(LLAMA, _whole, _llama),
    "smollm3": Family(SMOLLM3, _windowed_where_unrotated, _smollm3, 2_000_000.0),
    "qwen2": Family(QWEN2, _windowed_above, _qwen2),
    "qwen3": Family(QWEN3, _windowed_above, _qwen3),
    "qwen3_moe": Family(QWEN3_MOE, _windowed, _qwen3_moe),
    "mistral": Family(MISTRAL, _windowed, _mistral),
    "mixtral": Family(MIXTRAL, _windowed, _mixtral, 1_000_000.0),
    "gemma2": Family(GEMMA2, _windowed_but_every_nth, _gemma2),
    "gemma3_text": Family(
        GEMMA3, _windowed_but_every_nth, _gemma3, {WHOLE: 1_000_000.0, WINDOWED: 10_000.0}
    ),
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
    except RecursionError:
        raise UsageError(f"{path} holds JSON that is nested too deeply to be read") from None
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
            f"{where}: model_type is {name!r}, which our decoder does not compute; it computes "
            f"{', '.join(FAMILIES)}. Other families cannot be trained or served here, with any "
            "engine; behind a server they can be evaluated from Python, with `OpenAiPolicy`"
        )
    if config.get("quantization_config"):
        raise UsageError(f"{where}: the weights are quantised; use the unquantised model")
    if config.get("per_layer_config"):
        raise UsageError(f"{where}: per_layer_config makes layers differ, which does not run")
    family = FAMILIES[name]
    keys = read_keys(config, family.defaults, where)
    try:
        return family.differs(keys, _as_llama(keys, name, where))
    except (ValueError, ArithmeticError) as error:
        raise UsageError(f"{where} does not describe a {name} model: {error}") from error


def _as_llama(keys: Keys, name: str, where: str) -> Shape:
    """What all families have in common, and the windows and rotary tables of their layers."""
    family = FAMILIES[name]
    types = _layer_types(keys, family, where)
    parameters = rotary_parameters(keys, family.bases, where)
    shared = None in parameters
    tables = (None,) if shared else tuple(sorted(set(types)))
    if missing := [kind for kind in tables if kind not in parameters]:
        raise UsageError(f"{where}: rope_parameters has nothing for {missing[0]}")
    head_size, remainder = divmod(keys.hidden_size, keys.num_attention_heads)
    if keys.head_dim is not None:
        head_size = keys.head_dim
    elif remainder:
        raise ValueError(
            f"hidden_size {keys.hidden_size} does not divide by {keys.num_attention_heads} heads, "
            "and there is no head_dim"
        )
    used = [parameters[table] for table in tables]
    context = keys.max_position_embeddings
    longest = context_length(context, used, where)
    # A window that holds the whole context is none.
    window = None if keys.window is None or keys.window >= longest else keys.window
    return Shape(
        vocab_size=keys.vocab_size,
        hidden_size=keys.hidden_size,
        num_heads=keys.num_attention_heads,
        num_kv_heads=keys.num_key_value_heads or keys.num_attention_heads,
        head_size=head_size,
        intermediate_size=keys.intermediate_size,
        context_length=longest,
        tied_head=keys.tie_word_embeddings,
        layers=tuple(
            LayerShape(
                rotary=0 if shared else tables.index(kind),
                window=window if kind == WINDOWED else None,
            )
            for kind in types
        ),
        rotaries=tuple(rotary_table(one, head_size, context, where) for one in used),
        norms=Norms(keys.rms_norm_eps),
        activation=_activation(keys, family.defaults, where),
        family=name,
    )


def _layer_types(keys: Keys, family: Family, where: str) -> list[str]:
    """`full_attention` or `sliding_attention` for every layer."""
    types = family.types(keys) if keys.layer_types is None else keys.layer_types
    if unknown := sorted(set(types) - {WHOLE, WINDOWED}):
        raise UsageError(f"{where}: layer_types holds {unknown[0]!r}, which does not run")
    if len(types) != keys.num_hidden_layers:
        raise UsageError(
            f"{where}: layer_types has {len(types)} entries for {keys.num_hidden_layers} layers"
        )
    if WINDOWED in types and not (keys.window or 0) > 0:
        raise UsageError(f"{where}: layers slide, but sliding_window is {keys.window!r}")
    return types


def _activation(keys: Keys, defaults: Defaults, where: str) -> Activation:
    key = "hidden_act" if "hidden_act" in defaults else "hidden_activation"
    name = getattr(keys, key)
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UsageError(f"{where}: {key} is {name!r}; these run: {known}")
    return ACTIVATIONS[name]
