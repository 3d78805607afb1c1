"""One row of metrics, read back with names: what progress, view and report have in common.

Every key may be missing, and every value infinite: a row of another version, of a step that had
none of it, or of a training that diverged still reads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from practicum.statistics import Interval

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
    num_dropped: int
    """Groups that were given up in this step."""
    signal_share: float | None
    sampled_tokens: float | None
    prompt_tokens: float | None
    attempts: Mapping[str, int]
    """Outcome -> number of attempts."""
    seconds: float | None
    """Wall-clock time of the whole step."""
    phases: Mapping[str, float]
    """Wall-clock seconds of each phase; `other` is what no phase accounts for."""
    parts: Mapping[str, Mapping[str, float]]
    """Phase -> seconds of what is known to have happened within it."""
    peak_memory_gb: float | None

    @property
    def tokens_per_s(self) -> float | None:
        """Sampled tokens per second of rollout."""
        return token_rate(self.sampled_tokens, self.phases, self.seconds)


def token_rate(
    sampled_tokens: float | None, phases: Mapping[str, float], seconds: float | None
) -> float | None:
    """Sampled tokens per second of rollout, or of the whole time where no rollout was timed."""
    rollout = phases.get("rollout") or seconds
    return sampled_tokens / rollout if sampled_tokens is not None and rollout else None


def read_step(row: Mapping[str, float]) -> StepNumbers:
    """Name the numbers of one metrics row."""
    known = {name: value for name, value in row.items() if math.isfinite(value)}
    groups = {name: int(value) for name, value in _family(known, "groups").items()}
    times = {name.removesuffix("_s"): value for name, value in _under(known, "time").items()}
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
        num_dropped=int(known.get("groups/dropped", 0.0)),
        signal_share=known.get("groups/signal_share"),
        sampled_tokens=known.get("tokens/sampled"),
        prompt_tokens=known.get("tokens/prompt"),
        attempts={name: int(value) for name, value in _under(known, "attempts").items()},
        seconds=seconds,
        phases=phases,
        parts={phase: dict(found) for phase, found in parts.items()},
        peak_memory_gb=known.get("memory/peak_gb"),
    )


def _reward(row: Mapping[str, float], num_groups: int) -> Interval | None:
    """Mean reward with its 95 % interval; without logged bounds nothing is known of the spread."""
    if (mean := row.get("reward/mean")) is None:
        return None
    low, high = row.get("reward/low", -math.inf), row.get("reward/high", math.inf)
    return Interval(mean, low, high, num_groups)


def _family(row: Mapping[str, float], family: str) -> dict[str, float]:
    """Values by domain of `reward/<domain>` or `groups/<domain>`."""
    values = _under(row, family)
    return {name: value for name, value in values.items() if name not in _NOT_DOMAINS[family]}


def _under(row: Mapping[str, float], family: str) -> dict[str, float]:
    prefix = f"{family}/"
    return {
        name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)
    }
