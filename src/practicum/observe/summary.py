"""A whole run in one value, read from its durable files alone: what `view` and the report show.

Works on a finished run, a stopped one, and one that is still going on.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.config import RunConfig, with_floor
from practicum.errors import StoreError
from practicum.observe.checkpoints import CHECKPOINT_FORMAT
from practicum.observe.curves import Curve, health_curves, reward_curves
from practicum.observe.evals import Accuracy, Comparison, EvalResult, accuracy, compare, read_evals
from practicum.observe.metrics import metrics_digest, read_metrics
from practicum.observe.run_folder import RUN_FORMAT, RunFolder
from practicum.observe.runlog import LoggedFinding, read_findings
from practicum.observe.sampling import choose
from practicum.observe.segments import SEGMENT_FORMAT, TrajectoryRow
from practicum.observe.step_numbers import StepNumbers, read_step, token_rate
from practicum.observe.store import Attempt, TrajectoryStore
from practicum.types import Outcome
from practicum.verdicts import VerifierId


@dataclass(frozen=True, slots=True)
class DomainShare:
    """How much of the practice went to a domain, against what was asked for."""

    domain: str
    target: float
    realised: float
    num_groups: int


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Attempts that ended in one way for one reason."""

    outcome: str
    kind: str
    num: int
    domains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Speed:
    """What the run cost."""

    seconds: float
    """Wall-clock time of all steps."""
    phases: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]]
    """Phase -> seconds of what is known to have happened within it."""
    sampled_tokens: float
    prompt_tokens: float
    tokens_per_s: float | None
    """Sampled tokens per second of rollout."""
    peak_memory_gb: float | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything that a reader of one run wants to know."""

    name: str
    model: str
    created: str
    config: RunConfig
    steps_done: int
    evals: tuple[tuple[int, Accuracy], ...]
    """(step, accuracy over all domains) of every evaluation."""
    comparisons: tuple[Comparison, ...]
    """Last evaluation against the first, all domains first; empty without two of the same tasks."""
    compared_steps: tuple[int, int] | None
    reward: Curve
    domain_rewards: Mapping[str, Curve]
    health: tuple[tuple[str, Curve], ...]
    mix: tuple[DomainShare, ...]
    speed: Speed
    outcomes: Mapping[str, int]
    """Outcome -> attempts, over every stored attempt."""
    num_trajectories: int
    num_superseded: int
    """Groups that a resumed run replaced."""
    num_dropped_groups: int
    failures: tuple[FailureCount, ...]
    findings: tuple[LoggedFinding, ...]
    samples: tuple[Attempt, ...]
    vocabulary: Sequence[str] | None
    """Text of every token id, if the run kept it."""
    verifiers: tuple[tuple[str, VerifierId], ...]
    """(domain, verifier) of every verifier that spoke."""
    provenance: tuple[tuple[str, str], ...]


def summarise(path: Path, num_samples: int = 20) -> RunSummary:
    """Read a run folder. Raises UsageError if it is none, StoreError if it is damaged."""
    run = RunFolder.open(path)
    config, manifest = run.config(), run.manifest()
    metrics = read_metrics(run.metrics)
    numbers = [read_step(row) for row in metrics]
    evals = read_evals(run.evals)
    comparisons = _compare(evals)
    store = TrajectoryStore(run.trajectories, read_only=True)
    try:
        rows, steps = store.rows(), store.ledger.steps()
        overall, by_domain = reward_curves(rows, steps, metrics)
        samples = [store.trajectory(row.trajectory_id) for row in choose(rows, steps, num_samples)]
        store_digest, num_superseded = store.digest(), len(store.superseded())
    finally:
        store.close()
    digests = {"Metrics digest": metrics_digest(metrics), "Trajectories digest": store_digest}
    return RunSummary(
        name=str(manifest.get("id", path.name)),
        model=evals[-1].policy if evals else config.model.path,
        created=str(manifest.get("created", "unknown")),
        config=config,
        steps_done=len(metrics),
        evals=tuple((result.step, accuracy(result)) for result in evals if result.tasks),
        comparisons=comparisons,
        compared_steps=(evals[0].step, evals[-1].step) if comparisons else None,
        reward=overall,
        domain_rewards=by_domain,
        health=tuple(health_curves(metrics)),
        mix=_mix(config, numbers),
        speed=_speed(numbers),
        outcomes=_outcomes(rows),
        num_trajectories=len(rows),
        num_superseded=num_superseded,
        num_dropped_groups=sum(step.num_dropped for step in numbers),
        failures=_failures(rows),
        findings=tuple(read_findings(run.log)),
        samples=tuple(samples),
        vocabulary=read_vocabulary(run.vocabulary),
        verifiers=_verifiers(rows),
        provenance=_provenance(config, manifest, digests),
    )


def _compare(evals: Sequence[EvalResult]) -> tuple[Comparison, ...]:
    if len(evals) < 2 or not evals[0].tasks or set(evals[0].tasks) != set(evals[-1].tasks):
        return ()
    return tuple(compare(evals[0], evals[-1]))


def _mix(config: RunConfig, steps: Sequence[StepNumbers]) -> tuple[DomainShare, ...]:
    groups: Counter[str] = Counter()
    for numbers in steps:
        groups.update(numbers.domain_groups)
    targets = with_floor(config.domains.shares, config.domains.floor)
    total_groups = sum(groups.values())
    return tuple(
        DomainShare(
            domain,
            target=float(targets.get(domain, 0)),
            realised=groups[domain] / total_groups if total_groups else 0.0,
            num_groups=groups[domain],
        )
        for domain in sorted({*targets, *groups})
    )


def _speed(steps: Sequence[StepNumbers]) -> Speed:
    phases: defaultdict[str, float] = defaultdict(float)
    parts: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    seconds = 0.0
    for numbers in steps:
        seconds += numbers.seconds or 0.0
        for phase, found in numbers.parts.items():
            for name, value in found.items():
                parts[phase][name] += value
        for name, value in numbers.phases.items():
            phases[name] += value
    sampled = sum(numbers.sampled_tokens or 0.0 for numbers in steps)
    return Speed(
        seconds=seconds,
        phases=dict(phases),
        parts={phase: dict(found) for phase, found in parts.items()},
        sampled_tokens=sampled,
        prompt_tokens=sum(numbers.prompt_tokens or 0.0 for numbers in steps),
        tokens_per_s=token_rate(sampled, phases, seconds),
        peak_memory_gb=max(
            (step.peak_memory_gb for step in steps if step.peak_memory_gb is not None), default=None
        ),
    )


def _outcomes(rows: Sequence[TrajectoryRow]) -> Mapping[str, int]:
    """Every outcome, in the order of its definition, also those that never happened."""
    counts = Counter(row.outcome for row in rows)
    return {str(outcome): counts[str(outcome)] for outcome in Outcome}


def _failures(rows: Sequence[TrajectoryRow]) -> tuple[FailureCount, ...]:
    failed = [(row.outcome, row.failure_kind or "unnamed", row.domain) for row in rows
              if row.outcome != Outcome.SCORED]  # fmt: skip
    counts = Counter((outcome, kind) for outcome, kind, _ in failed)
    return tuple(
        FailureCount(
            outcome,
            kind,
            num,
            tuple(sorted({d for o, k, d in failed if (o, k) == (outcome, kind)})),
        )
        for (outcome, kind), num in counts.most_common()
    )


def _verifiers(rows: Sequence[TrajectoryRow]) -> tuple[tuple[str, VerifierId], ...]:
    found = {
        (row.domain, row.verifier_name, row.verifier_version or "", row.verifier_digest or "")
        for row in rows
        if row.verifier_name is not None
    }
    return tuple((domain, VerifierId(*verifier)) for domain, *verifier in sorted(found))


def read_vocabulary(path: Path) -> Sequence[str] | None:
    """The text of every token id, None if the run did not keep it. Raises StoreError."""
    if not path.exists():
        return None
    try:
        return [str(piece) for piece in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"cannot read {path}: {error}; remove it to see token ids") from error


def _provenance(
    config: RunConfig, manifest: Mapping[str, Any], digests: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    versions = ", ".join(f"{name} {text}" for name, text in manifest.get("versions", {}).items())
    return (
        ("Seed", str(config.seed)),
        ("Created", str(manifest.get("created", "unknown"))),
        ("Platform", str(manifest.get("platform", "unknown"))),
        ("Versions", versions),
        ("Formats", f"run {RUN_FORMAT}, segment {SEGMENT_FORMAT}, checkpoint {CHECKPOINT_FORMAT}"),
        *digests.items(),
    )
