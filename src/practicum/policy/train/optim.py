"""AdamW over masters: warm-up and decay, clipping by global norm, weight decay of matrices only.

The one thing to know: a gradient that is not finite moves nothing. Weights, moments and counters
stay as they were, and the step says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.policy.train.masters import Masters

EPSILON = 1e-8
"""Added to the root of Adam's second moment."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How far and how a step may go."""

    learning_rate: float
    warmup_updates: int = 0
    """The first updates use 1/n, 2/n, ... of the learning rate."""
    total_updates: int = 0
    """After the warm-up the rate falls linearly, up to this many updates; 0: it stays."""
    decay_to: float = 1.0
    """Share of the learning rate that the last of them uses."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    """On matrices only; norms are not decayed."""
    max_grad_norm: float = 1.0

    def rate(self, num_updates: int) -> float:
        """Learning rate of the update after `num_updates` others."""
        if num_updates < self.warmup_updates:
            return self.learning_rate * (num_updates + 1) / self.warmup_updates
        num_falling = self.total_updates - 1 - self.warmup_updates
        if num_falling <= 0:
            return self.learning_rate
        fallen = min(1.0, (num_updates - self.warmup_updates) / num_falling)
        return self.learning_rate * (1.0 - fallen * (1.0 - self.decay_to))


@dataclass(frozen=True, slots=True)
class Update:
    """What one optimizer step did."""

    grad_norm: float
    """Before clipping."""
    learning_rate: float
    applied: bool
    """False if the gradient was not finite."""


class AdamW:
    """The optimizer's state: two moments per master and the number of updates."""

    def __init__(self, masters: Masters, schedule: Schedule) -> None:
        self.schedule = schedule
        self.num_updates = 0
        self._masters = masters
        weights = list(masters.weights.values())
        self._torch = torch.optim.AdamW(
            [
                {"params": [w for w in weights if w.ndim >= 2]},
                {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
            ],
            lr=schedule.learning_rate,
            betas=(schedule.beta1, schedule.beta2),
            eps=EPSILON,
            weight_decay=schedule.weight_decay,
            fused=True,
        )
        # Made here instead of in torch's first step, so there is always a state to save and load.
        for weight in weights:
            self._torch.state[weight] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(weight, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(weight, requires_grad=False),
            }

    def moments(self, which: str) -> dict[str, Tensor]:
        """Name of the weight -> its `exp_avg` or `exp_avg_sq`."""
        return {name: self._torch.state[w][which] for name, w in self._masters.weights.items()}

    def restore_count(self, num_updates: int) -> None:
        """Continue after `num_updates` updates: warm-up and bias correction depend on them."""
        self.num_updates = num_updates
        for weight in self._masters.weights.values():
            self._torch.state[weight]["step"].fill_(num_updates)

    def step(self) -> Update:
        """Apply the collected gradients, or refuse them if one is not finite."""
        rate = self.schedule.rate(self.num_updates)
        grad_norm = self._grad_norm()
        applied = math.isfinite(grad_norm)
        if applied:
            if grad_norm > self.schedule.max_grad_norm:
                for gradient in self._masters.gradients:
                    gradient.mul_(self.schedule.max_grad_norm / grad_norm)
            for group in self._torch.param_groups:
                group["lr"] = rate
            self._torch.step()
            self.num_updates += 1
        return Update(grad_norm, rate, applied)

    def _grad_norm(self) -> float:
        norms = torch.stack([torch.linalg.vector_norm(g) for g in self._masters.gradients])
        return float(torch.linalg.vector_norm(norms))
