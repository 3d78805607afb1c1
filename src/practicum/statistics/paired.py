"""Before against after on the same tasks. Overlapping intervals decide nothing; differences do.

Pairing removes what the tasks have in common, which is most of the spread: the same data needs
several times fewer tasks than two separate means would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from practicum.errors import UsageError
from practicum.statistics.intervals import mean_interval
from practicum.statistics.quantiles import student_tail, two_sided


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of `after - before` over tasks, with its interval and two-sided p-value.

    Example:
        PairedDifference(mean=0.21, low=0.14, high=0.28, n=128, p_value=1.1e-08)
    """

    mean: float
    low: float
    high: float
    n: int
    p_value: float


def paired_difference(
    before: Mapping[str, float], after: Mapping[str, float], confidence: float = 0.95
) -> PairedDifference:
    """t-interval and t-test on the per-task differences; scores by task id.

    If every difference is the same, a t-test would divide by zero and claim certainty. Instead the
    interval is exact for unit scores (at most a share 1 - (a/2)^(1/n) of all tasks may behave
    otherwise, the rule of three), unlimited for other scales, and the p-value is that of the
    sign-flip test.

    Raises UsageError unless both sides hold exactly the same tasks.
    """
    ids = _same_ids(before, after)
    differences = [after[task_id] - before[task_id] for task_id in ids]
    scores = [*before.values(), *after.values()]
    # Unit scores bound the difference; a t-interval does not know that.
    limit = 1.0 if min(scores) >= 0.0 and max(scores) <= 1.0 else math.inf
    if float(np.ptp(differences)) < 1e-12:  # equal but for rounding
        return _constant_difference(differences[0], len(ids), limit, confidence)
    interval = mean_interval(differences, confidence)
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(ids))
    return PairedDifference(
        interval.mean,
        max(interval.low, -limit),
        min(interval.high, limit),
        len(ids),
        student_tail(interval.mean / error, len(ids) - 1),
    )


def difference_bounds(
    before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> tuple[float, float]:
    """Least and greatest mean difference, whatever the unscored tasks (None) would have scored.

    For unit scores. Raises UsageError unless both sides hold exactly the same tasks.

    Example:
        difference_bounds({"a": 0.0, "b": None}, {"a": 1.0, "b": 1.0}) == (0.5, 1.0)
    """
    ids = _same_ids(before, after)

    def mean(scores: Mapping[str, float | None], unscored: float) -> float:
        filled = [scores[task_id] for task_id in ids]
        return sum(unscored if score is None else score for score in filled) / len(ids)

    return mean(after, 0.0) - mean(before, 1.0), mean(after, 1.0) - mean(before, 0.0)


def _same_ids(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    if set(before) != set(after):
        lost, new = sorted(set(before) - set(after)), sorted(set(after) - set(before))
        examples = ", ".join(repr(task_id) for task_id in (lost + new)[:3])
        raise UsageError(
            f"the two evaluations did not see the same tasks ({len(lost)} only before, {len(new)} "
            f"only after, such as {examples}), so their difference says nothing about the policy; "
            "evaluate both on one task set"
        )
    if not before:
        raise UsageError("there is no task to compare; raise eval.tasks_per_domain above 0")
    return sorted(before)


def _constant_difference(
    difference: float, num: int, limit: float, confidence: float
) -> PairedDifference:
    p_value = 1.0 if difference == 0.0 else 2.0 ** (1 - num)
    if math.isinf(limit):
        return PairedDifference(difference, -math.inf, math.inf, num, p_value)
    # None of `num` tasks behaved otherwise; a share `other` of all tasks still may, by anything.
    other = 1.0 - (1.0 - two_sided(confidence)) ** (1.0 / num)
    low = difference - other * (limit + difference)
    high = difference + other * (limit - difference)
    return PairedDifference(difference, low, high, num, p_value)
