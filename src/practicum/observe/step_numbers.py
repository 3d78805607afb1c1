"""One row of metrics, read back with names: what progress, view and report have in common.

Every key may be missing: a row of another version, or of a step that had none of it, still reads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from practicum.statistics import Interval
from practicum.statistics.quantiles import student_quantile, two_sided

_NOT_DOMAINS = {
    "reward": frozenset({"mean", "std", "num", "low", "high"}),
    "groups": frozenset({"signal_share", "dropped", "num"}),
}
_PARTS = {
    "generate": "rollout",
    "verify": "rollout",
    "forward": "train",
    "backward": "train",
    "optimizer": "train",
}
"""Times that lie within a phase; verifying is summed over attempts that ran at once."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of one step; None or an empty mapping where the row has none.

    Example:
        read_step({"step": 4, "reward/mean": 0.5}).reward.mean == 0.5
    """

    step: int
    reward: Interval | None
    domain_rewards: Mapping[str, float]
    domain_groups: Mapping[str, int]
    signal_share: float | None
    sampled_tokens: float | None
    attempts: Mapping[str, int]
    """Outcome -> number of attempts."""
    seconds: float | None
    """Wall-clock time of the whole step."""
    phases: Mapping[str, float]
    """Wall-clock seconds of each phase; `other` is what no phase accounts for."""
    parts: Mapping[str, Mapping[str, float]]
    """Phase -> seconds of what is known to have happened within it."""

    @property
    def tokens_per_s(self) -> float | None:
        """Sampled tokens per second of rollout."""
        rollout = self.phases.get("rollout") or self.seconds
        if self.sampled_tokens is None or not rollout:
            return None
        return self.sampled_tokens / rollout


def read_step(row: Mapping[str, float]) -> StepNumbers:
    """Name the numbers of one metrics row."""
    groups = {name: int(value) for name, value in _family(row, "groups").items()}
    times = {
        name.removesuffix("_s"): value
        for name, value in _under(row, "time").items()
        if math.isfinite(value)
    }
    seconds = times.pop("step", None)
    phases = {name: value for name, value in times.items() if name not in _PARTS}
    parts: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, phase in _PARTS.items():
        if name in times:
            parts[phase][name] = times[name]
    if seconds is None:
        seconds = sum(phases.values()) if phases else None
    elif seconds - sum(phases.values()) > 0.01 * seconds:
        phases["other"] = seconds - sum(phases.values())
    return StepNumbers(
        step=int(row["step"]),
        reward=_reward(row, sum(groups.values())),
        domain_rewards=_family(row, "reward"),
        domain_groups=groups,
        signal_share=row.get("groups/signal_share"),
        sampled_tokens=row.get("tokens/sampled"),
        attempts={name: int(value) for name, value in _under(row, "attempts").items()},
        seconds=seconds,
        phases=phases,
        parts={phase: dict(found) for phase, found in parts.items()},
    )


def _reward(row: Mapping[str, float], num_groups: int) -> Interval | None:
    """Mean reward with a 95 % interval.

    Attempts at one task are no independent samples, and a row does not say how alike they are: the
    interval counts each group once, which is right if they agree and too wide otherwise.
    """
    mean, std = row.get("reward/mean"), row.get("reward/std")
    if mean is None:
        return None
    if "reward/low" in row and "reward/high" in row:
        return Interval(mean, row["reward/low"], row["reward/high"], num_groups)
    if std is None or num_groups < 2:
        return Interval(mean, -math.inf, math.inf, num_groups)
    half = student_quantile(two_sided(0.95), num_groups - 1) * std / math.sqrt(num_groups)
    return Interval(mean, mean - half, mean + half, num_groups)


def _family(row: Mapping[str, float], family: str) -> dict[str, float]:
    """Values by domain of `reward/<domain>` or `groups/<domain>`."""
    values = _under(row, family)
    return {name: value for name, value in values.items() if name not in _NOT_DOMAINS[family]}


def _under(row: Mapping[str, float], family: str) -> dict[str, float]:
    prefix = f"{family}/"
    return {
        name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)
    }
