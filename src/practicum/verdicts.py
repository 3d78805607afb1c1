"""What attempts were worth: from one `Verdict` over the `Group` to the `Report` of a step.

A verifier returns a `Verdict`, all attempts at one task form a `Group`, the unit of baselines and
of quality control, and quality control sums a step up in a `Report`. Standard library only, all
frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from practicum.types import Task, Trajectory


@dataclass(frozen=True, slots=True)
class Violation:
    """Something the policy did that it must not profit from. Penalties are bounded and named."""

    kind: str
    """Such as `format`, `tampering`, `resource_abuse`."""
    penalty: float
    """In [0, 1]; `penalty(violations)` caps the sum."""
    evidence: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.penalty <= 1.0:
            raise ValueError(f"penalty {self.penalty} of violation {self.kind!r} is outside [0, 1]")


def penalty(violations: Iterable[Violation]) -> float:
    """The bounded sum of penalties: at most 1, so that no violation outweighs a whole task."""
    return min(1.0, sum(violation.penalty for violation in violations))


@dataclass(frozen=True, slots=True)
class VerifierId:
    """Which verifier spoke: a reward is only comparable with rewards of the same digest."""

    name: str
    version: str
    digest: str
    """Of the verifier's source."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found; `reward` is the number trained on.

    Example:
        Verdict(score=1.0, verifier=..., parts={"exact": 1.0}, evidence="expected '7', got '7'")
    """

    score: float
    verifier: VerifierId
    scale: Literal["unit", "unbounded"] = "unit"
    violations: tuple[Violation, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named components, for people; they need not sum to the score."""
    evidence: str = ""
    unscorable: str | None = None
    """The cause, if the verifier cannot tell; the attempt is then left out, never booked as 0."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise ValueError(f"verifier {self.verifier.name!r} returned the score {self.score}")
        if self.scale == "unit" and not 0.0 <= self.score <= 1.0:
            raise ValueError(
                f"verifier {self.verifier.name!r} returned {self.score}, outside its unit scale"
            )

    @property
    def reward(self) -> float:
        """Score minus the bounded penalty of the violations."""
        return self.score - penalty(self.violations)


@dataclass(frozen=True, slots=True)
class Group:
    """All attempts at one task that share a baseline.

    `verdicts` is keyed by trajectory id, never by position, and holds an entry for exactly the
    trajectories whose outcome `counts`.
    """

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: Mapping[str, Verdict]

    def __post_init__(self) -> None:
        counted = {t.id for t in self.trajectories if t.outcome.counts}
        assert set(self.verdicts) == counted, "verdicts must cover exactly what counts"

    @property
    def counted(self) -> tuple[Trajectory, ...]:
        """The trajectories that enter baseline, advantage and pass rate, in sample order."""
        return tuple(t for t in self.trajectories if t.outcome.counts)

    @property
    def has_signal(self) -> bool:
        """False if all rewards agree: such a group has no gradient under a group baseline."""
        return len({verdict.reward for verdict in self.verdicts.values()}) > 1

    @property
    def pass_rate(self) -> float | None:
        """Mean score of the counting attempts, None if there are none. Unit scales only."""
        scores = [v.score for v in self.verdicts.values() if v.scale == "unit"]
        return sum(scores) / len(scores) if scores else None


def judged(groups: Iterable[Group]) -> tuple[list[Trajectory], dict[str, Verdict]]:
    """All trajectories of some groups, in order, and their verdicts by trajectory id."""
    groups = list(groups)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return trajectories, {id: v for group in groups for id, v in group.verdicts.items()}


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How one group did at one task."""

    task_id: str
    domain: str
    difficulty: float
    score_sum: float
    """Sum of unit scores over the attempts that count."""
    num_counted: int
    num_attempts: int

    @property
    def pass_rate(self) -> float | None:
        return self.score_sum / self.num_counted if self.num_counted else None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something quality control noticed about one task or domain."""

    kind: str
    """Such as `never_passes`, `always_passes`, `infra_share`."""
    domain: str
    evidence: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Environment quality after one step: QC's product, the curriculum's input."""

    step: int
    results: tuple[TaskResult, ...]
    failures: Mapping[str, int]
    """`outcome/kind` -> number of attempts in this step."""
    findings: tuple[Finding, ...] = ()
