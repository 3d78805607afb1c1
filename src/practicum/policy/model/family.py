"""What a Hugging Face `config.json` says, as a `Shape`; and which models run here at all.

Only the Llama family runs. Whatever would make our decoder compute something else than the folder's
author meant (biases, other activations, rotary tables that change with length) is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import (
    ROPE_INIT_FUNCTIONS,  # pyright: ignore[reportUnknownVariableType]
)

from practicum.errors import UsageError
from practicum.policy.model.transformer import Shape

FAMILIES = ("llama",)
"""Values of `model_type` that run."""

CHANGING_ROTATIONS = ("dynamic", "longrope")
"""Rotary tables that depend on the length of the sequence; ours is one fixed table."""

Json = dict[str, Any]


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
    """The tensors of the model that `config` describes, in its current or older keys.

    Raises UsageError naming the key for anything that our decoder does not compute.
    """
    _refuse_what_does_not_run(config, where)
    try:
        parsed = LlamaConfig(**{key: config[key] for key in config if key != "model_type"})
        frequencies = _inverse_frequencies(parsed, where)
        shape = Shape(
            vocab_size=parsed.vocab_size,
            hidden_size=parsed.hidden_size,
            num_layers=parsed.num_hidden_layers,
            num_heads=parsed.num_attention_heads,
            num_kv_heads=cast(int, parsed.num_key_value_heads),
            head_size=cast(int, parsed.head_dim),
            intermediate_size=parsed.intermediate_size,
            context_length=parsed.max_position_embeddings,
            norm_eps=parsed.rms_norm_eps,
            tied_head=bool(parsed.tie_word_embeddings),
            inverse_frequencies=frequencies,
        )
    except UsageError:
        raise
    except Exception as error:  # transformers has its own strict validation, with its own types
        raise UsageError(f"{where} does not describe a Llama model: {error}") from error
    return shape


def _refuse_what_does_not_run(config: Mapping[str, Any], where: str) -> None:
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UsageError(
            f"{where}: model_type is {family!r}; only {', '.join(FAMILIES)} runs "
            "(other families come later). SmolLM2, Llama 2 and 3, and their descendants fit"
        )
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise UsageError(f"{where}: {key} is set, and biases do not run; use a model without")
    if config.get("quantization_config"):
        raise UsageError(f"{where}: the weights are quantised; use the unquantised model")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UsageError(f"{where}: hidden_act is {activation!r}; only silu runs")


def _inverse_frequencies(parsed: LlamaConfig, where: str) -> tuple[float, ...]:
    """The rotary table, with scaling applied, from transformers' own functions."""
    rope = cast(Json, parsed.rope_parameters)
    kind = str(rope.get("rope_type", "default"))
    head_size = cast(int, parsed.head_dim)
    if kind in CHANGING_ROTATIONS:
        raise UsageError(f"{where}: rope_type {kind!r} changes with length and does not run")
    if kind == "default":
        base = float(rope["rope_theta"])
        exponents = torch.arange(0, head_size, 2, dtype=torch.float) / head_size
        table, factor = 1.0 / (base**exponents), 1.0
    else:
        functions = cast(Mapping[str, Any], ROPE_INIT_FUNCTIONS)
        if kind not in functions:
            raise UsageError(f"{where}: unknown rope_type {kind!r}")
        table, factor = functions[kind](parsed)
    if factor != 1.0 or len(table) * 2 != head_size:
        raise UsageError(f"{where}: rope_type {kind!r} also scales or truncates; it does not run")
    return tuple(table.tolist())
