"""What a `config.json` says about rotary tables, in its current and its older keys.

The current key is `rope_parameters`, one object for all layers or one for each type of layer. Older
folders have `rope_theta` beside `rope_scaling`, whose variant may be called `type`; Gemma 3 has
`rope_local_base_freq` for the layers that look at a window. The older `rope_scaling` wins where a
folder has both, and within an object its own values win over those beside it, as in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from practicum.errors import UsageError
from practicum.policy.model.config_keys import Keys

WHOLE, WINDOWED = "full_attention", "sliding_attention"
"""Types of layers: one looks at everything before it, the other at a window."""

Parameters = Mapping[str, Any]
"""Of one table: `rope_type`, `rope_theta`, `factor`, ... with all defaults in place."""

Bases = float | Mapping[str, float]
"""A family's `rope_theta`; or one for each type of layer, which then have tables of their own."""

STRETCHED = ("yarn", "llama3")
"""Variants that need to know the context of the model that they stretch."""

ORIGINAL = "original_max_position_embeddings"
"""That context. Beside the parameters it wins over one among them."""


def rotary_parameters(keys: Keys, bases: Bases, where: str) -> Mapping[str | None, Parameters]:
    """Parameters by type of layer, or under None if all layers share a table.

    Raises UsageError if some are no object.
    """
    if isinstance(bases, Mapping):
        named = _of_each_type(keys, bases, where)
    else:
        own = keys.rope_scaling or keys.rope_parameters or {}
        base = keys.rope_theta or bases
        if not {WHOLE, WINDOWED} & own.keys():
            return {None: _completed(own, base, keys)}
        named = {kind: (own[kind], base) for kind in (WHOLE, WINDOWED) if own.get(kind) is not None}
    for kind, (own, _) in named.items():
        if not isinstance(own, dict):
            raise UsageError(f"{where}: rope_parameters.{kind} is {own!r}; it should be an object")
    return {kind: _completed(own, base, keys) for kind, (own, base) in named.items()}


def _of_each_type(
    keys: Keys, bases: Mapping[str, float], where: str
) -> Mapping[str, tuple[Any, float]]:
    """Of a family whose types of layers always have tables of their own (Gemma 3)."""
    given = keys.rope_parameters or {}
    if given and not bases.keys() & given.keys():
        raise UsageError(
            f"{where}: rope_parameters should hold an object for each type of layer "
            f"({', '.join(bases)}), not {', '.join(given)}"
        )
    older = {WHOLE: keys.rope_theta, WINDOWED: keys.rope_local_base_freq}
    own = {kind: given.get(kind) or {} for kind in bases}
    if isinstance(own[WHOLE], dict):
        own[WHOLE] = {**own[WHOLE], **(keys.rope_scaling or {})}
    return {kind: (own[kind], older[kind] or bases[kind]) for kind in bases}


def _completed(own: Parameters, base: float, keys: Keys) -> Parameters:
    complete = {"rope_type": own.get("type", "default"), "rope_theta": base, **own}
    if keys.partial_rotary_factor is not None:
        complete.setdefault("partial_rotary_factor", keys.partial_rotary_factor)
    if complete["rope_type"] in STRETCHED:
        complete.setdefault(ORIGINAL, keys.max_position_embeddings)
        if keys.original_max_position_embeddings is not None:
            complete[ORIGINAL] = keys.original_max_position_embeddings
    return complete
