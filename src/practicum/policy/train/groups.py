"""From trajectories and verdicts to scored attempts: who enters the baseline, and with what weight.

The one thing to know: every trajectory with a verdict counts in the baseline of its group and in
the denominator of the step, also if it has no token to train on (it failed before it spoke). Groups
without signal are left out of the forward pass, and only there: their advantages are exactly 0, so
the gradient is the same, and `Totals` was counted before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from practicum.errors import InfraError
from practicum.policy.train.advantages import has_spread
from practicum.policy.train.aggregation import Totals
from practicum.policy.train.algorithms import Algorithm
from practicum.policy.train.batch import Attempt
from practicum.types import Trajectory
from practicum.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Scored:
    """The groups of a step that carry signal, and what was counted on the way."""

    groups: tuple[tuple[Attempt, ...], ...]
    num_without_signal: int
    totals: Totals


def score(
    trajectories: Sequence[Trajectory],
    verdicts: Mapping[str, Verdict],
    algorithm: Algorithm,
    max_response_tokens: int,
) -> Scored:
    """Group by `group_id`, compute advantages, and fold all denominators into token weights.

    Raises InfraError if the engine recorded a log-prob that is not finite.
    """
    grouped: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: (t.group_id, t.sample, t.id)):
        if trajectory.id in verdicts and verdicts[trajectory.id].unscorable is None:
            _refuse_non_finite(trajectory)
            grouped.setdefault(trajectory.group_id, []).append(trajectory)
    counted = [trajectory for group in grouped.values() for trajectory in group]
    totals = Totals(
        num_trajectories=len(counted),
        num_tokens=sum(trajectory.num_trainable for trajectory in counted),
        max_response_tokens=max_response_tokens,
    )
    groups: list[tuple[Attempt, ...]] = []
    for group in grouped.values():
        rewards = [verdicts[trajectory.id].reward for trajectory in group]
        if has_spread(rewards):
            groups.append(_attempts(group, algorithm, rewards, totals))
    return Scored(tuple(groups), len(grouped) - len(groups), totals)


def _attempts(
    group: Sequence[Trajectory], algorithm: Algorithm, rewards: Sequence[float], totals: Totals
) -> tuple[Attempt, ...]:
    """Attempts without a trainable token took part in the baseline and end here."""
    return tuple(
        Attempt(
            segments=trajectory.segments,
            advantage=advantage,
            weight=algorithm.token_weight(trajectory.num_trainable, totals),
        )
        for trajectory, advantage in zip(group, algorithm.advantages(rewards))
        if trajectory.num_trainable
    )


def _refuse_non_finite(trajectory: Trajectory) -> None:
    """Raise InfraError naming the first trainable token whose recorded log-prob is not a number."""
    for index, segment in enumerate(trajectory.segments):
        for place, (logprob, mask) in enumerate(zip(segment.logprobs, segment.loss_mask)):
            if mask and not math.isfinite(logprob):
                raise InfraError(
                    f"the engine recorded a log-prob of {logprob} for token {place} of segment "
                    f"{index} of trajectory {trajectory.id!r}; nothing was trained in this step. "
                    "Its weights produce non-finite numbers: resume from the last good checkpoint"
                )
