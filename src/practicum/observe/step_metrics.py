"""The numbers of one step that follow from its groups: what was rolled out, how it was judged."""

from __future__ import annotations

import resource
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

from practicum.statistics import clustered_mean
from practicum.verdicts import Group, Report


def step_metrics(
    step: int, groups: Sequence[Group], lost: Sequence[Group], report: Report
) -> dict[str, float]:
    """Numbers of the groups trained on; the outcomes include those of the `lost` groups.

    `step` equals the version trained from: the staleness of a token is `step - its version`.
    """
    verdicts = [verdict for group in groups for verdict in group.verdicts.values()]
    rewards = [verdict.reward for verdict in verdicts]
    owners = [group.id for group in groups for _ in group.verdicts]
    mean = clustered_mean(rewards, owners)  # attempts at one task are not independent
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    by_domain: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        by_domain[group.task.domain] += [verdict.reward for verdict in group.verdicts.values()]
    staleness = [step - t.oldest_version for t in trajectories if t.oldest_version is not None]
    outcomes = Counter(t.outcome for group in (*groups, *lost) for t in group.trajectories)
    domains = Counter(group.task.domain for group in groups)
    metrics = {
        "reward/mean": mean.mean,
        "reward/low": mean.low,
        "reward/high": mean.high,
        "reward/std": statistics.pstdev(rewards),
        "reward/num": float(len(rewards)),
        "groups/signal_share": statistics.fmean(group.has_signal for group in groups),
        "groups/dropped": float(len(lost)),
        "tokens/sampled": float(sum(t.usage.sampled_tokens for t in trajectories)),
        "tokens/prompt": float(sum(t.usage.prompt_tokens for t in trajectories)),
        "staleness/max": float(max(staleness, default=0)),
        "staleness/mean": statistics.fmean(staleness) if staleness else 0.0,
        "qc/findings": float(len(report.findings)),
        "memory/peak_gb": _peak_memory_gb(),
        "time/generate_s": max((t.usage.generate_s for t in trajectories), default=0.0),
        "time/verify_s": sum(t.usage.verify_s for t in trajectories),
    }
    metrics |= {f"reward/{domain}": statistics.fmean(r) for domain, r in by_domain.items() if r}
    metrics |= {f"groups/{domain}": float(number) for domain, number in domains.items()}
    metrics |= {f"attempts/{outcome}": float(number) for outcome, number in outcomes.items()}
    return metrics


def _peak_memory_gb() -> float:
    """Most memory this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)
