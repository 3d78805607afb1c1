"""Environment quality control on the attempts of training: what the tasks and verifiers are worth.

The one thing to know: findings pool all steps so far, and each report carries every finding that
holds at that step. The last report tells all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from practicum.environment.qc.tallies import DomainTally, TaskTally
from practicum.errors import UsageError
from practicum.types import Outcome, Task, Trajectory
from practicum.verdicts import Finding, Group, Report, TaskResult, Verdict

MIN_ATTEMPTS = 16
"""Before so many attempts nothing is said of a task; before so many groups, of a domain."""

Observer = Callable[[Report], None]


class EnvQC:
    """Turns attempts and verdicts into reports, and hands each to its observers.

    Example:
        >>> qc = EnvQC(task_pool, observers=[curriculum.observe])
        >>> qc.report(trajectories, rewards).failures
        {'grader_failure/verifier_timeout': 1}
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        observers: Sequence[Observer] = (),
        *,
        min_attempts: int = MIN_ATTEMPTS,
    ) -> None:
        self._tasks = tasks
        self._observers = tuple(observers)
        self._min_attempts = min_attempts
        self._step = 0
        self._by_task: dict[str, TaskTally] = {}
        self._by_domain: dict[str, DomainTally] = {}

    def report(self, trajectories: Iterable[Trajectory], rewards: Mapping[str, Verdict]) -> Report:
        """The report of one step. Steps count from 0, one for each call."""
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.group_id, []).append(trajectory)
        results = tuple(self._take_in(group, rewards) for group in groups.values())
        failures = Counter(
            f"{outcome}/{kind}"
            for group in groups.values()
            for outcome, kind in (_ending(trajectory, rewards) for trajectory in group)
            if kind
        )
        report = Report(
            step=self._step,
            results=results,
            failures=dict(sorted(failures.items())),
            findings=self.findings(),
        )
        self._step += 1
        for observe in self._observers:
            observe(report)
        return report

    def findings(self) -> tuple[Finding, ...]:
        """Everything that holds now, tasks first."""
        found: list[Finding] = []
        for task_id, tally in sorted(self._by_task.items()):
            finding = tally.finding(self._tasks[task_id], self._min_attempts)
            found += [finding] if finding else []
        for domain, tally in sorted(self._by_domain.items()):
            found += tally.findings(domain, self._min_attempts)
        return tuple(found)

    def state(self) -> dict[str, Any]:
        """JSON-able; `restore(state())` continues exactly."""
        return {
            "step": self._step,
            "tasks": {task_id: tally.state() for task_id, tally in self._by_task.items()},
            "domains": {domain: tally.state() for domain, tally in self._by_domain.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._step = state["step"]
        self._by_task = {task_id: TaskTally(**tally) for task_id, tally in state["tasks"].items()}
        self._by_domain = {
            domain: DomainTally(**tally) for domain, tally in state["domains"].items()
        }

    def _take_in(self, group: Sequence[Trajectory], rewards: Mapping[str, Verdict]) -> TaskResult:
        task = self._task_of(group)
        endings = [_ending(trajectory, rewards)[0] for trajectory in group]
        judged = tuple(t for t in group if t.outcome.counts and t.id in rewards)
        verdicts = {t.id: rewards[t.id] for t in judged}
        scores = [verdict.score for verdict in verdicts.values() if verdict.scale == "unit"]
        self._by_task.setdefault(task.id, TaskTally()).add(scores)
        self._by_domain.setdefault(task.domain, DomainTally()).add(
            endings, Group(group[0].group_id, task, judged, verdicts)
        )
        return TaskResult(
            task_id=task.id,
            domain=task.domain,
            difficulty=task.difficulty,
            score_sum=sum(scores),
            num_counted=len(scores),
            num_attempts=len(group),
        )

    def _task_of(self, group: Sequence[Trajectory]) -> Task:
        task_ids = {trajectory.task_id for trajectory in group}
        assert len(task_ids) == 1, f"group {group[0].group_id} mixes the tasks {sorted(task_ids)}"
        task = self._tasks.get(group[0].task_id)
        if task is None:
            raise UsageError(
                f"attempt {group[0].id} is at task {group[0].task_id}, which EnvQC does not know; "
                "give it the pool that the attempts were drawn from"
            )
        return task


def _ending(trajectory: Trajectory, rewards: Mapping[str, Verdict]) -> tuple[Outcome, str]:
    """Outcome, and the kind of failure; empty if it was simply scored."""
    if trajectory.outcome.counts and trajectory.id not in rewards:
        # Attempts that `RewardHub.score` could not judge come back unchanged, without a verdict.
        return Outcome.GRADER_FAILURE, "unscored"
    if trajectory.outcome is Outcome.SCORED:
        return Outcome.SCORED, ""
    return trajectory.outcome, trajectory.failure.kind if trajectory.failure else "unknown"
