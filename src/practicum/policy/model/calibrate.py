"""Lower precision within an error that is measured: which matrices bear int8, on sample tokens.

The error is the mean over tokens of KL(exact || lowered), of next-token distributions. Matrices err
nearly independently, so each is measured alone, and those that give most speed for their error are
taken first; how many is decided by measuring the mixes themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from practicum.policy.model.dense import DenseMemory
from practicum.policy.model.precision import EXACT, Kind, Precision, lower, matrices
from practicum.policy.model.transformer import Transformer

DEFAULT_BUDGET = 1e-2
"""Mean KL in nats: a seventh of what one step of a policy update is commonly allowed."""

TokenIds = Sequence[int]


@dataclass(frozen=True, slots=True)
class Measured:
    """A precision and what it costs and gives."""

    precision: Precision
    kl: float
    """Mean KL(exact || this) per token, in nats."""
    share: float
    """Of the model's matrix weights that are multiplied in low precision."""


class Calibration:
    """The exact distributions after every token of some texts, and comparisons with them."""

    def __init__(self, model: Transformer, sequences: Sequence[TokenIds]) -> None:
        assert sequences, "nothing to measure on"
        self.model = model
        self._sequences = [torch.tensor(token_ids) for token_ids in sequences]
        self._exact = self._distributions(model)
        self._sizes = {name: weight.numel() for name, weight in matrices(model).items()}

    def measure(self, precision: Precision) -> Measured:
        share = sum(self._sizes[name] for name in precision.kinds) / sum(self._sizes.values())
        if precision.exact:
            return Measured(precision, 0.0, share)
        lowered = self._distributions(lower(self.model, precision).model)
        terms = [
            (exact.exp() * (exact - other)).sum(-1)
            for exact, other in zip(self._exact, lowered, strict=True)
        ]
        return Measured(precision, torch.cat(terms).double().mean().item(), share)

    def order(self, kind: Kind = "w8a8") -> list[str]:
        """All matrices, those first that bear the most weights for their error."""
        errors = {
            name: self.measure(_mix([name], kind)).kl / size for name, size in self._sizes.items()
        }
        return sorted(errors, key=errors.__getitem__)

    def choose(
        self, budget_kl: float = DEFAULT_BUDGET, *, order: Sequence[str] = (), kind: Kind = "w8a8"
    ) -> Measured:
        """The largest mix, in this order, whose measured error is within the budget."""
        order = order or self.order(kind)
        fits, too_many = 0, len(order) + 1
        best = Measured(EXACT, 0.0, 0.0)
        while too_many - fits > 1:
            number = (fits + too_many) // 2
            measured = self.measure(_mix(order[:number], kind))
            if measured.kl <= budget_kl:
                fits, best = number, measured
            else:
                too_many = number
        return best

    @torch.inference_mode()
    def _distributions(self, model: Transformer) -> list[Tensor]:
        """Log-probs [L, V] after each token of each text."""
        return [
            model.logits(model(ids, torch.arange(len(ids)), DenseMemory())).log_softmax(-1)
            for ids in self._sequences
        ]


def _mix(names: Sequence[str], kind: Kind) -> Precision:
    return Precision("mixed", MappingProxyType(dict.fromkeys(names, kind)))
