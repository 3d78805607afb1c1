"""What quality control remembers of each task and domain, and when it speaks up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from practicum.types import Outcome, Task
from practicum.verdicts import Finding, Group

WARN_SHARE = 0.02
"""Of attempts lost to the machinery or to the verifier: worth a look."""
STOP_SHARE = 0.10
"""So many lost attempts make the pass rates of a domain meaningless."""
SILENT_SHARE = 0.60
"""Of groups whose rewards all agree: most of the compute of this domain teaches nothing."""


@dataclass(slots=True)
class TaskTally:
    """Attempts at one task that count, over all steps."""

    num_counted: int = 0
    score_sum: float = 0.0

    def add(self, scores: Sequence[float]) -> None:
        self.num_counted += len(scores)
        self.score_sum += sum(scores)

    def finding(self, task: Task, min_attempts: int) -> Finding | None:
        if self.num_counted < min_attempts:
            return None
        if self.score_sum == 0.0:
            kind, evidence = "never_passes", f"0 of {self.num_counted} attempts scored anything"
        elif self.score_sum == self.num_counted:
            kind, evidence = "always_passes", f"all {self.num_counted} attempts scored 1"
        else:
            return None
        return Finding(kind, task.domain, f"{evidence} (level {task.difficulty})", task.id)

    def state(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class DomainTally:
    """Attempts and groups of one domain, over all steps."""

    num_attempts: int = 0
    """Without cancelled ones, which say nothing about the domain."""
    num_infra: int = 0
    num_grader: int = 0
    num_groups: int = 0
    """With at least two attempts that count: smaller ones cannot carry signal."""
    num_silent: int = 0
    """Of those, groups whose rewards all agree."""
    num_silent_passes: int = 0
    """Of those, groups in which every attempt scored 1."""

    def add(self, endings: Iterable[Outcome], judged: Group) -> None:
        """`endings` of all attempts of a group, and the group of those that have a verdict."""
        for outcome in endings:
            self.num_attempts += outcome is not Outcome.CANCELLED
            self.num_infra += outcome is Outcome.INFRA_FAILURE
            self.num_grader += outcome is Outcome.GRADER_FAILURE
        if len(judged.verdicts) < 2:
            return
        self.num_groups += 1
        self.num_silent += not judged.has_signal
        self.num_silent_passes += not judged.has_signal and judged.pass_rate == 1.0

    def findings(self, domain: str, min_attempts: int) -> Iterator[Finding]:
        if self.num_attempts >= min_attempts:
            yield from self._lost("infra_share", domain, self.num_infra, "the machinery")
            yield from self._lost("grader_share", domain, self.num_grader, "the verifier")
        if self.num_groups >= min_attempts and self.num_silent > SILENT_SHARE * self.num_groups:
            evidence = (
                f"{self.num_silent} of {self.num_groups} groups had no signal, "
                f"{self.num_silent_passes} of them because every attempt passed"
            )
            yield Finding("zero_signal", domain, evidence)

    def state(self) -> dict[str, Any]:
        return asdict(self)

    def _lost(self, kind: str, domain: str, num_lost: int, cause: str) -> Iterator[Finding]:
        share = num_lost / self.num_attempts
        if share <= WARN_SHARE:
            return
        verdict = "stop and repair it" if share > STOP_SHARE else "have a look"
        evidence = f"{num_lost} of {self.num_attempts} attempts ({share:.1%}) lost to {cause}"
        yield Finding(kind, domain, f"{evidence}: {verdict}")
