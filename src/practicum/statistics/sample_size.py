"""How many tasks a before/after comparison needs, and what it can see with those it has.

Ask before the run: 89 tasks tried once cannot show a gain of 5 points.
"""

from __future__ import annotations

import math

from practicum.statistics.quantiles import normal_quantile, two_sided


def minimum_detectable_effect(
    num_tasks: int, sd_difference: float, power: float = 0.8, confidence: float = 0.95
) -> float:
    """The true mean difference that a paired comparison would call real with this power.

    `sd_difference` is the standard deviation of per-task differences: from an earlier run, or
    from `paired_sd`.

    Example:
        minimum_detectable_effect(89, 0.518) is about 0.154
    """
    if num_tasks < 1:
        raise ValueError(f"num_tasks must be at least 1, not {num_tasks}")
    if not (math.isfinite(sd_difference) and sd_difference >= 0.0):
        raise ValueError(f"a standard deviation cannot be {sd_difference}")
    return _noncentrality(power, confidence) * sd_difference / math.sqrt(num_tasks)


def tasks_needed(
    effect: float, sd_difference: float, power: float = 0.8, confidence: float = 0.95
) -> int:
    """Least number of tasks whose minimum detectable effect is at most `effect`."""
    if not effect > 0.0:
        raise ValueError(f"the effect to detect must be above 0, not {effect}")
    return max(1, math.ceil((_noncentrality(power, confidence) * sd_difference / effect) ** 2))


def paired_sd(
    pass_rate: float, correlation: float, num_trials: int = 1, task_share: float = 0.5
) -> float:
    """Standard deviation of two policies' difference in mean 0/1 score on one task.

    `task_share` is the part of the variance p (1 - p) that lies between tasks, `correlation` that
    of the two policies' task pass rates; each policy tries each task `num_trials` times.
    """
    if not 0.0 <= pass_rate <= 1.0 or not -1.0 <= correlation <= 1.0:
        raise ValueError(f"pass rate {pass_rate} or correlation {correlation} is out of range")
    if num_trials < 1 or not 0.0 <= task_share <= 1.0:
        raise ValueError(f"{num_trials} trials or a task share of {task_share} is out of range")
    total = pass_rate * (1.0 - pass_rate)
    between = 2.0 * total * task_share * (1.0 - correlation)
    within = 2.0 * total * (1.0 - task_share) / num_trials
    return math.sqrt(between + within)


def _noncentrality(power: float, confidence: float) -> float:
    if not 0.0 < power < 1.0:
        raise ValueError(f"power must lie between 0 and 1, not {power}")
    return normal_quantile(two_sided(confidence)) + normal_quantile(power)
