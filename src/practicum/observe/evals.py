"""Evaluations on held-out tasks, one `eval/<step>.json` each, and what they say about the policy.

An unscored task is never left out silently: strict accuracy books it as 0 and is the headline,
scored-only accuracy and bounds stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from practicum.errors import StoreError, UsageError
from practicum.observe.codec import without_surrogates
from practicum.observe.files import disk_error, replace_file, sync
from practicum.statistics import (
    Interval,
    PairedDifference,
    difference_bounds,
    mean_interval,
    paired_difference,
    wilson,
)


@dataclass(frozen=True, slots=True)
class EvalTask:
    """One held-out task: how the policy did, and its own words."""

    domain: str
    score: float | None
    """None if the attempt could not be scored."""
    outcome: str
    response: str


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One evaluation of one policy.

    Example:
        EvalResult(step=0, policy="SmolLM2-135M-Instruct", version=0,
                   tasks={"5f1c...": EvalTask("addition", 1.0, "scored", "7")})
    """

    step: int
    """Steps of training done; 0 is before training."""
    policy: str
    version: int
    tasks: Mapping[str, EvalTask]

    @property
    def domains(self) -> list[str]:
        return sorted({task.domain for task in self.tasks.values()})

    def scores(self, domain: str | None = None) -> dict[str, float | None]:
        """Task id -> score, of one domain or of all."""
        return {
            task_id: task.score
            for task_id, task in self.tasks.items()
            if domain is None or task.domain == domain
        }


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A mean score with its 95 % interval, counted in both ways."""

    strict: Interval
    """An unscored task counts as 0."""
    scored: Interval | None
    """Over scored tasks only, None if there are none."""
    num_unscored: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same tasks before and after training."""

    domain: str | None
    """None for all domains together."""
    before: Accuracy
    after: Accuracy
    strict: PairedDifference
    scored: PairedDifference | None
    """Over tasks scored both times, None if there are none."""
    bounds: tuple[float, float]
    """Least and greatest mean difference, whatever the unscored tasks would have scored."""


def write_eval(folder: Path, result: EvalResult) -> Path:
    """Write `eval/<step>.json`, whole or not at all; the same step again replaces it."""
    path = folder / f"{result.step:06d}.json"
    ordered = EvalResult(
        result.step, result.policy, result.version, dict(sorted(result.tasks.items()))
    )
    try:
        content = msgspec.json.encode(ordered)
    except UnicodeEncodeError:
        content = msgspec.json.encode(without_surrogates(ordered))
    replace_file(path, msgspec.json.format(content, indent=1) + b"\n")
    return path


def read_eval(path: Path) -> EvalResult:
    """Read one evaluation. Raises UsageError if it is not there, StoreError if it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EvalResult)
    except FileNotFoundError:
        raise UsageError(f"there is no evaluation {path}; run `practicum eval` first") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"the evaluation {path} cannot be read: {error}") from error


def read_evals(folder: Path) -> list[EvalResult]:
    """All evaluations of a run, earliest first."""
    return sorted((read_eval(path) for path in folder.glob("*.json")), key=lambda r: r.step)


def drop_later_evals(folder: Path, step: int) -> None:
    """Delete the evaluations after more than `step` steps: those of weights that a resume left."""
    later = [
        path for path in folder.glob("*.json") if path.stem.isdecimal() and int(path.stem) > step
    ]
    try:
        for path in later:
            path.unlink()
        if later:
            sync(folder)
    except OSError as error:
        raise disk_error(folder, error) from error


def accuracy(result: EvalResult, domain: str | None = None) -> Accuracy:
    """Accuracy over one domain or all. Raises UsageError if it holds no task."""
    scores = list(result.scores(domain).values())
    if not scores:
        raise UsageError(f"the evaluation at step {result.step} has no task of domain {domain!r}")
    scored = [score for score in scores if score is not None]
    return Accuracy(
        _mean([score or 0.0 for score in scores]),
        _mean(scored) if scored else None,
        len(scores) - len(scored),
    )


def compare(before: EvalResult, after: EvalResult) -> list[Comparison]:
    """All domains together, then each one. Raises UsageError if the tasks are not the same."""
    return [
        _compare(before, after, domain)
        for domain in (None, *sorted({*before.domains, *after.domains}))
    ]


def _compare(before: EvalResult, after: EvalResult, domain: str | None) -> Comparison:
    old, new = before.scores(domain), after.scores(domain)
    bounds = difference_bounds(old, new)
    both_old, both_new = (
        {id: score for id, score in scores.items() if score is not None and other[id] is not None}
        for scores, other in ((old, new), (new, old))
    )
    return Comparison(
        domain=domain,
        before=accuracy(before, domain),
        after=accuracy(after, domain),
        strict=paired_difference(_strict(old), _strict(new)),
        scored=paired_difference(both_old, both_new) if both_old else None,
        bounds=bounds,
    )


def _strict(scores: Mapping[str, float | None]) -> dict[str, float]:
    return {task_id: score or 0.0 for task_id, score in scores.items()}


def _mean(scores: list[float]) -> Interval:
    """Wilson's interval for right and wrong; for graded scores the t-interval."""
    if set(scores) <= {0.0, 1.0}:
        return wilson(sum(scores), len(scores))
    return mean_interval(scores)
