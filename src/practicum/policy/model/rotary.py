"""The rotary tables of a configuration, with the variant it asks for applied.

The one thing to know: a table never changes with the length of a sequence, or a token's keys would
depend on what comes after it. `dynamic` (NTK) rescales only beyond the declared context, and no
sequence gets there, so it is the plain table; `longrope`, which switches within it, is refused.

The tables come from transformers' own functions: default, linear, dynamic, YaRN and Llama 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers.modeling_rope_utils import (
    ROPE_INIT_FUNCTIONS,  # pyright: ignore[reportUnknownVariableType]
)

from practicum.errors import UsageError
from practicum.policy.model.shape import Rotary

VARIANTS = ("default", "linear", "dynamic", "yarn", "llama3")
"""Values of `rope_type` that run."""

Parameters = Mapping[str, Any]
"""`rope_type`, `rope_theta`, `factor`, ..."""


def parameters_of(parsed: Any, layer_type: str | None) -> Parameters:
    """What the parsed configuration says of one table; Gemma 3 has one for each layer type."""
    parameters = cast(Parameters, parsed.rope_parameters)
    return parameters if layer_type is None else cast(Parameters, parameters[layer_type])


def rotary_table(parsed: Any, head_size: int, layer_type: str | None, where: str) -> Rotary:
    """One table for heads of `head_size`. Raises UsageError naming a variant that does not run."""
    parameters = parameters_of(parsed, layer_type)
    kind = str(parameters.get("rope_type", "default"))
    if kind == "longrope":
        raise UsageError(
            f"{where}: rope_type 'longrope' changes with the length of a sequence, so a token's "
            f"result would depend on what follows it; these run: {', '.join(VARIANTS)}"
        )
    if kind not in VARIANTS:
        raise UsageError(
            f"{where}: rope_type {kind!r} does not run; these do: {', '.join(VARIANTS)}"
        )
    if (part := parameters.get("partial_rotary_factor")) not in (None, 1.0):
        raise UsageError(f"{where}: partial_rotary_factor is {part}; only whole heads are rotated")
    if kind == "default":
        exponents = torch.arange(0, head_size, 2, dtype=torch.float) / head_size
        table = 1.0 / (float(parameters["rope_theta"]) ** exponents)
        return Rotary(tuple(table.tolist()))
    functions = cast(Mapping[str, Any], ROPE_INIT_FUNCTIONS)
    table, scale = functions[kind](parsed, layer_type=layer_type)
    return Rotary(tuple(table.tolist()), float(scale))


def context_length(parsed: Any, layer_types: tuple[str | None, ...]) -> int:
    """The declared context; YaRN's is at least its original length times its factor.

    That is how the makers of Qwen mean it: a folder that adds YaRN keeps `max_position_embeddings`.
    """
    declared = int(parsed.max_position_embeddings)
    for layer_type in layer_types:
        parameters = parameters_of(parsed, layer_type)
        if parameters.get("rope_type") == "yarn" and parameters.get("factor"):
            original = parameters["original_max_position_embeddings"]
            declared = max(declared, int(parameters["factor"] * original))
    return declared
