"""In which precision every matrix of a model is multiplied, and the model that does so.

The one thing to know: `lower(...)` makes a view of a model, not a copy. It shares every parameter
and has quantised copies of the matrices that a `Precision` names, so it must be told (`refresh`)
when the parameters have changed. Only a precision without such matrices is `exact`: what any other
samples needs importance weights, or verification by the exact model.

Experts, embeddings and norms always stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from practicum.errors import UsageError
from practicum.policy.model.native.matrix import SHARERS, Quantised, Storage
from practicum.policy.model.quantised import quantise, requantise_
from practicum.policy.model.transformer import Layer, Transformer

Kind = Literal["w8a8", "int4"]
"""8-bit weights times 8-bit activations (faster from one row on); 4-bit weights (less memory)."""
STORED: Mapping[Kind, Storage] = {"w8a8": "int8", "int4": "int4"}

HEAD = "head"
MATRICES = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True, slots=True)
class Precision:
    """A choice for every matrix of one model."""

    name: str
    kinds: Mapping[str, Kind] = field(default_factory=lambda: MappingProxyType({}))
    """By the names of `matrices`; what is not here is multiplied in the model's own dtype."""

    @property
    def exact(self) -> bool:
        """Whether log-probs are those that the trainer finds."""
        return not self.kinds


EXACT = Precision("exact")


def matrices(model: Transformer) -> dict[str, Tensor]:
    """What can be quantised: "layers.0.qkv" and so on, and "head"."""
    found: dict[str, Tensor] = {}
    for layer in _layers(model):
        for name in MATRICES:
            if (weight := getattr(layer, name)).dim() == 2:
                found[f"layers.{layer.index}.{name}"] = weight
    found[HEAD] = model.head
    return found


def uniform(model: Transformer, kind: Kind) -> Precision:
    """The same for every matrix."""
    return Precision(kind, MappingProxyType(dict.fromkeys(matrices(model), kind)))


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model in lower precision beside the one whose parameters it shares."""

    model: Transformer
    precision: Precision
    copies: tuple[tuple[Quantised, Tensor], ...]
    """Each with the parameter that it is a copy of."""

    def refresh(self) -> None:
        """Take over parameters that have changed: 60 ms for 135 million of them."""
        for quantised, weight in self.copies:
            requantise_(quantised, weight)

    @property
    def num_bytes(self) -> int:
        """Of the copies; the shared parameters come on top."""
        return sum(quantised.num_bytes for quantised, _ in self.copies)


def lower(model: Transformer, precision: Precision) -> Lowered:
    """A view of the model that multiplies as the precision says. It cannot be trained."""
    weights = matrices(model)
    _check(model, precision, weights)
    view = copy.copy(model)
    layers = [copy.copy(layer) for layer in _layers(model)]
    view.__dict__["layers"] = layers  # beside the registered modules, which both share
    copies: list[tuple[Quantised, Tensor]] = []
    for name, kind in precision.kinds.items():
        weight = weights[name].detach()
        quantised = quantise(weight, STORED[kind])
        copies.append((quantised, weight))
        if name == HEAD:
            view.__dict__["untied_head"] = quantised
        else:
            _, index, attribute = name.split(".")
            layers[int(index)].__dict__[attribute] = quantised
    return Lowered(view, precision, tuple(copies))


def _check(model: Transformer, precision: Precision, weights: Mapping[str, Tensor]) -> None:
    if not precision.exact and model.dtype != torch.bfloat16:
        raise UsageError(
            f"precision {precision.name!r} is made from bfloat16 weights, but the model is loaded "
            f"in {str(model.dtype).removeprefix('torch.')}; load it in bfloat16"
        )
    for name, kind in precision.kinds.items():
        if name not in weights:
            raise UsageError(
                f"precision {precision.name!r} names {name!r}, which is no matrix of this model; "
                f"its matrices are {', '.join(list(weights)[:4])}, ..., {HEAD}"
            )
        if kind == "int4" and (size := weights[name].shape[1]) % SHARERS:
            raise UsageError(
                f"int4 needs rows of a multiple of {SHARERS} weights, but {name} has {size}; "
                "take w8a8 for it"
            )


def _layers(model: Transformer) -> list[Layer]:
    return [layer for layer in model.layers if isinstance(layer, Layer)]
