"""What a training step tells: one flat mapping of numbers, the same keys in every step.

The one thing to know: averages are over the tokens that were trained on, that is of groups with
signal; a step without any reports zeros. Loss, entropy and mismatch are those of the first pass,
before any weight moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from practicum.policy.train.batch import Batch, MicroBatch
from practicum.policy.train.groups import Scored
from practicum.policy.train.losses import Mismatch, mismatch
from practicum.policy.train.optim import Update
from practicum.policy.train.surrogate import PolicyPass
from practicum.protocols import Metrics


@dataclass(frozen=True, slots=True)
class Round:
    """One pass and the optimizer step after it."""

    policy: PolicyPass
    update: Update | None
    """None if the loss was not finite, so that there was no gradient to apply"""
    optimizer_s: float

    @property
    def skipped(self) -> Literal["loss", "gradient"] | None:
        """What was not finite, if anything: the step then moved nothing."""
        if self.update is None:
            return "loss"
        return None if self.update.applied else "gradient"


def step_metrics(
    scored: Scored,
    batch: Batch,
    work: Sequence[MicroBatch],
    rounds: Sequence[Round],
    version: int,
    learning_rate: float,
) -> Metrics:
    """`version` is that of the weights that were trained, before this step's publication."""
    first = rounds[0].policy.base if rounds else None
    gap = mismatch(first.logprobs, batch.behaviour) if first else Mismatch(0.0, 0.0, 0.0)
    updates = [r.update for r in rounds if r.update is not None]
    staleness = (version - batch.versions).double()
    causes = [r.skipped for r in rounds]
    return {
        "train/loss": first.loss if first else 0.0,
        "train/grad_norm": updates[0].grad_norm if updates else 0.0,
        "train/entropy": first.entropy if first else 0.0,
        "train/logprob_gap": gap.mean_absolute,
        "train/logprob_gap_signed": gap.mean_signed,
        "train/logprob_gap_k3": gap.kl_k3,
        "train/clip_share": max((r.policy.clip_share for r in rounds), default=0.0),
        "train/ratio_max": max((r.policy.ratio_max for r in rounds), default=1.0),
        "train/staleness_mean": float(staleness.mean()) if rounds else 0.0,
        "train/staleness_max": float(staleness.max()) if rounds else 0.0,
        "train/tokens": float(len(batch)),
        "train/tokens_forward": float(sum(len(micro_batch.forest) for micro_batch in work)),
        "train/tokens_flat": float(batch.num_flat_tokens),
        "train/groups": float(len(scored.groups)),
        "train/groups_without_signal": float(scored.num_without_signal),
        "train/micro_batches": float(len(work)),
        "train/updates": float(sum(update.applied for update in updates)),
        "train/skipped": float(any(causes)),
        "train/skipped_by_loss": float("loss" in causes),
        "train/skipped_by_gradient": float("gradient" in causes),
        "train/learning_rate": updates[0].learning_rate if updates else learning_rate,
        "time/forward_s": sum((r.policy.base.forward_s for r in rounds), 0.0),
        "time/backward_s": sum((r.policy.base.backward_s for r in rounds), 0.0),
        "time/optimizer_s": sum((r.optimizer_s for r in rounds), 0.0),
    }
