"""Intervals, paired comparisons, pass@k and sample sizes: pure functions over plain numbers."""

from practicum.statistics.intervals import Interval, clustered_mean, mean_interval, wilson
from practicum.statistics.paired import PairedDifference, difference_bounds, paired_difference
from practicum.statistics.pass_at_k import all_pass_at_k, mean_pass_at_k, pass_at_k
from practicum.statistics.sample_size import (
    minimum_detectable_effect,
    paired_sd,
    tasks_needed,
)

__all__ = [
    "Interval",
    "PairedDifference",
    "all_pass_at_k",
    "clustered_mean",
    "difference_bounds",
    "mean_interval",
    "mean_pass_at_k",
    "minimum_detectable_effect",
    "paired_difference",
    "paired_sd",
    "pass_at_k",
    "tasks_needed",
    "wilson",
]
