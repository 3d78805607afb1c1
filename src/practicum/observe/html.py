"""`report.html`: one self-contained file that shows a run. No script, no network, no trust.

Model text is hostile: every expression of a template is sanitised and escaped, whatever it holds,
and the page forbids itself everything but its own style sheet, which it names by digest.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from practicum.observe import svg, wording
from practicum.observe.cards import card
from practicum.observe.curves import Curve
from practicum.observe.evals import Comparison
from practicum.observe.files import replace_file
from practicum.observe.hostile import sanitise
from practicum.observe.run_folder import RunFolder
from practicum.observe.summary import RunSummary, summarise
from practicum.statistics import minimum_detectable_effect
from practicum.statistics.quantiles import student_quantile, two_sided
from practicum.types import Outcome

_FORBIDDEN = "base-uri 'none'; form-action 'none'"
"""What `default-src` does not cover."""


_ALGORITHMS = {"grpo": "GRPO", "dr_grpo": "Dr. GRPO"}

_OUTCOMES = {
    Outcome.SCORED: "scored",
    Outcome.MODEL_FAILURE: "failed by the policy's own fault",
    Outcome.INFRA_FAILURE: "lost to the machinery",
    Outcome.GRADER_FAILURE: "lost to the verifier",
    Outcome.CANCELLED: "cancelled",
}


def write_report(path: Path) -> Path:
    """Read the run folder and write its `report.html`; returns where it is."""
    report = RunFolder.open(path).report
    replace_file(report, render_report(summarise(path)).encode())
    return report


def render_report(summary: RunSummary) -> str:
    """The whole page."""
    style = (resources.files("practicum.observe") / "templates" / "report.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            summary=summary,
            svg=svg,
            style=Markup(style),  # ours, from the package
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; {_FORBIDDEN}",
            outcome_words=_OUTCOMES,
            algorithm=_ALGORITHMS.get(name := summary.config.train.algorithm, name),
            overall=summary.comparisons[0] if summary.comparisons else None,
            headline=headline(summary),
            limits=_difference_limits(summary.comparisons),
            detectable=_detectable(summary),
            domain_range=_shared_range(list(summary.domain_rewards.values())),
            largest_share=max((max(m.realised, m.target) for m in summary.mix), default=1.0),
            settings=_settings(summary),
            cards=[card(attempt, summary.vocabulary) for attempt in summary.samples],
            practicum_version=metadata.version("practicum"),
        )
    )


def headline(summary: RunSummary) -> str:
    """What the run achieved, in one sentence that claims no more than the interval allows."""
    if not summary.comparisons:
        return "This run has no evaluation before and after, so it makes no claim about progress."
    overall = summary.comparisons[0]
    change = overall.strict
    what = (
        f"from {wording.percent(overall.before.strict.mean, 1)} to "
        f"{wording.percent(overall.after.strict.mean, 1)} on {change.n:,} held-out tasks"
    )
    if change.low > 0:
        return f"Accuracy rose {what}."
    if change.high < 0:
        return f"Accuracy fell {what}."
    return f"Accuracy went {what}: no change that this evaluation can tell from chance."


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("practicum.observe", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_inert,
    )
    environment.filters.update(
        {
            "percent": wording.percent,
            "fixed": wording.fixed,
            "number": wording.number,
            "count": lambda value: f"{value:,.0f}",
            "duration": wording.duration,
            "share_and_interval": wording.share_and_interval,
            "mean_and_interval": wording.mean_and_interval,
            "points": wording.points,
            "signed_points": wording.signed_points,
            "p_value": wording.p_value,
            "words": lambda name: str(name).replace("_", " "),
        }
    )
    return environment


def _inert(value: Any) -> Any:
    """Applied to every expression: text is sanitised here and escaped afterwards."""
    return sanitise(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _difference_limits(comparisons: Sequence[Comparison]) -> svg.Range:
    """One scale for all rows, wide enough for every interval, in steps of 10 points."""
    ends = [end for c in comparisons for end in (c.strict.low, c.strict.high) if math.isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    return math.floor(low * 10 - 0.2) / 10, math.ceil(high * 10 + 0.2) / 10


def _detectable(summary: RunSummary) -> float | None:
    """The smallest true change that the overall comparison would have found four times in five."""
    if not summary.comparisons:
        return None
    change = summary.comparisons[0].strict
    if change.n < 2 or not math.isfinite(change.high - change.low):
        return None
    error = (change.high - change.low) / 2 / student_quantile(two_sided(0.95), change.n - 1)
    return minimum_detectable_effect(change.n, error * math.sqrt(change.n))


def _shared_range(curves: Sequence[Curve]) -> svg.Range | None:
    """One scale for the small multiples, or they could not be compared."""
    points = [point for curve in curves for point in curve]
    return svg.nice_range(tuple(points)) if points else None


def _settings(summary: RunSummary) -> list[tuple[str, list[tuple[str, str]]]]:
    """(section, [(key, value)]) of the whole configuration."""
    top: list[tuple[str, str]] = []
    sections: list[tuple[str, list[tuple[str, str]]]] = [("run", top)]
    for key, value in summary.config.model_dump(mode="json").items():
        if isinstance(value, dict):
            entries = cast("dict[str, Any]", value).items()
            sections.append((key, [(name, _setting(entry)) for name, entry in entries]))
        else:
            top.append((key, _setting(value)))
    return sections


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in cast("dict[str, Any]", value).items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in cast("list[Any]", value))
    return str(value)
