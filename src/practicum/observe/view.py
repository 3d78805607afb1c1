"""What `practicum view RUN` prints: the run at a glance, its trajectories, or one of them in full.

Everything that is not ours is sanitised and wrapped in `Text`, which never reads markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from practicum.observe.cards import Card, card
from practicum.observe.curves import Curve
from practicum.observe.evals import Comparison
from practicum.observe.hostile import one_line, sanitise
from practicum.observe.html import headline
from practicum.observe.run_folder import RunFolder
from practicum.observe.run_json import run_json, trajectory_json
from practicum.observe.store import Attempt, TrajectoryStore
from practicum.observe.summary import RunSummary, read_vocabulary, summarise
from practicum.observe.wording import duration, fixed, number, percent, points, sparkline
from practicum.types import Outcome

_NUM_SAMPLES = 16
"""One of each domain, passed and failed, early and late, for four domains."""
_LEFT = frozenset({"domain", "outcome", "evidence", "answer", "over the steps"})
"""Columns of words; all others but the first hold numbers."""
_ENDINGS = {"good": "green", "bad": "red", "none": "yellow"}


def view_run(
    path: Path,
    console: Console | None = None,
    *,
    trajectory_id: str | None = None,
    as_json: bool = False,
) -> None:
    """The whole run on one screen, or one trajectory of it; `as_json` for programs.

    Raises UsageError if there is no such run or trajectory.
    """
    console = console or Console()
    if as_json:
        print(run_json(path) if trajectory_id is None else trajectory_json(path, trajectory_id),
              file=console.file)  # fmt: skip
    elif trajectory_id is not None:
        view_trajectory(path, trajectory_id, console)
    else:
        _view_summary(summarise(path, num_samples=_NUM_SAMPLES), console)


def view_trajectories(
    path: Path,
    console: Console,
    *,
    domain: str | None = None,
    outcome: Outcome | None = None,
    step: int | None = None,
    limit: int = 50,
) -> None:
    """One line per trajectory, the newest last."""
    store = _open(path)
    try:
        rows = store.rows(domain=domain, outcome=outcome, step=step)
        steps = store.ledger.steps()
    finally:
        store.close()
    table = _table("trajectory", "step", "domain", "outcome", "score", "reward", "tokens")
    for row in rows[-limit:] if limit else ():
        values = [row.score, row.reward]
        trained = steps.get(row.group_id)
        table.add_row(
            Text(one_line(row.trajectory_id, 40)),
            Text("–" if trained is None else str(trained)),
            Text(one_line(row.domain, 24)),
            Text(one_line(row.failure_kind or row.outcome, 24)),
            *[Text("–" if value is None else fixed(value)) for value in values],
            Text(str(row.num_sampled)),
        )
    console.print(table)
    shown = min(limit, len(rows))
    _line(console, f"{shown} of {len(rows)} trajectories; see one with --trajectory ID")


def view_trajectory(path: Path, trajectory_id: str, console: Console) -> None:
    """One trajectory in full: words, tokens, verdict. Raises UsageError if there is none."""
    store = _open(path)
    try:
        attempt = store.trajectory(trajectory_id)
    finally:
        store.close()
    shown = card(attempt, read_vocabulary(RunFolder.open(path).vocabulary))
    title = Text(f" {sanitise(shown.ending)} ", style=f"reverse {_ENDINGS[shown.grade]}")
    where = "never trained on" if shown.step is None else f"step {shown.step}"
    title.append(f"  {sanitise(shown.domain)}, {where}, sample {shown.sample}", style="not reverse")
    console.print(title)
    _line(console, f"trajectory {shown.trajectory_id}", "dim")
    for role, text in (*shown.prompt, *shown.turns):
        _line(console, f"\n{'policy' if role == 'assistant' else role}", "dim")
        _line(console, text or "(nothing)", "bold" if role == "assistant" else "")
    _tokens(console, shown)
    _verdict(console, shown)


def _view_summary(summary: RunSummary, console: Console) -> None:
    total = summary.config.train.steps
    _line(console, summary.model, "bold")
    _line(console, f"run {summary.name}, {summary.steps_done} of {total} steps, {_cost(summary)}\n")
    _line(console, headline(summary), "bold")
    if summary.comparisons:
        console.print(_before_after(summary.comparisons))
    if summary.reward:
        console.print()
        console.print(_curves(summary))
    if summary.speed.phases:
        phases = ", ".join(f"{n} {duration(s)}" for n, s in summary.speed.phases.items())
        _line(console, f"\ntime: {phases}")
    outcomes = ", ".join(f"{num:,} {name}" for name, num in summary.outcomes.items() if num)
    _line(console, f"attempts: {outcomes or 'none'}\n")
    _findings(console, summary)
    if summary.samples:
        console.print()
        console.print(_samples(summary.samples))
        _line(console, "see one in full with --trajectory and the beginning of its id", "dim")


def _samples(samples: Sequence[Attempt]) -> Table:
    table = _table("trajectory", "step", "domain", "outcome", "answer")
    for attempt in samples:
        shown = card(attempt, None)
        table.add_row(
            Text(one_line(shown.trajectory_id[:12], 12)),
            Text("–" if shown.step is None else str(shown.step)),
            Text(one_line(shown.domain, 24)),
            Text(one_line(shown.ending, 24), style=_ENDINGS[shown.grade]),
            Text(one_line(attempt.trajectory.response, 36)),
        )
    return table


def _tokens(console: Console, shown: Card) -> None:
    if not shown.tokens:
        return
    _line(console, "\nsampled tokens, underlined where the policy gave them less than half", "dim")
    line = Text()
    for token in shown.tokens:
        line.append(sanitise(token.text), style="underline" if token.surprise > 1 else "")
        line.append(f"({fixed(token.logprob)})", style="dim")
    console.print(line)
    versions = sorted({token.version for token in shown.tokens})
    named = ", ".join(map(str, versions))
    _line(console, f"{shown.num_sampled} tokens, weights version {named}", "dim")


def _verdict(console: Console, shown: Card) -> None:
    _line(console, f"\nended by {shown.stop_reason}", "dim")
    if shown.verifier:
        reward = "–" if shown.reward is None else fixed(shown.reward)
        _line(console, f"{shown.verifier} gave the reward {reward}")
    if shown.evidence:
        _line(console, shown.evidence)
    for name, value in shown.parts:
        _line(console, f"  {name} {number(value)}")
    for kind, penalty, evidence in shown.violations:
        _line(console, f"violation {kind}, penalty {fixed(penalty)}: {evidence}", "red")
    if shown.failure:
        _line(console, shown.failure, "red")


def _before_after(comparisons: Sequence[Comparison]) -> Table:
    table = _table("domain", "tasks", "before", "after", "difference, points [95 %]")
    for row in (*comparisons[1:], comparisons[0]):
        change = row.strict
        style = "green" if change.low > 0 else "red" if change.high < 0 else ""
        table.add_row(
            Text("all" if row.domain is None else one_line(row.domain, 24)),
            Text(str(change.n)),
            Text(percent(row.before.strict.mean, 1)),
            Text(percent(row.after.strict.mean, 1)),
            Text(points(change), style=style),
            style="bold" if row.domain is None else "",
        )
    return table


def _curves(summary: RunSummary) -> Table:
    table = _table("reward", "first", "last", "over the steps")
    curves: list[tuple[str, Curve]] = [*summary.domain_rewards.items(), ("all", summary.reward)]
    every = [point.trend for _, curve in curves for point in curve]
    limits = (min(every), max(every))  # one scale, or the rows could not be compared
    for name, curve in curves:
        trend = [point.trend for point in curve]
        table.add_row(
            Text(one_line(name, 24)),
            Text(fixed(trend[0])),
            Text(fixed(trend[-1])),
            Text(sparkline(trend, limits=limits), style="green"),
            style="bold" if curve is summary.reward else "",
        )
    return table


def _findings(console: Console, summary: RunSummary) -> None:
    if not summary.findings:
        _line(console, "quality control found nothing")
        return
    table = _table("finding", "domain", "first step", "evidence")
    for entry in summary.findings[:20]:
        found = entry.finding
        table.add_row(
            Text(one_line(found.kind, 24)),
            Text(one_line(found.domain, 24)),
            Text(str(entry.step)),
            Text(one_line(found.evidence, 70)),
        )
    console.print(table)
    if len(summary.findings) > 20:
        _line(console, f"and {len(summary.findings) - 20} more in log.jsonl", "dim")


def _cost(summary: RunSummary) -> str:
    parts = [f"{summary.num_trajectories:,} trajectories", duration(summary.speed.seconds)]
    if summary.speed.tokens_per_s is not None:
        parts.append(f"{summary.speed.tokens_per_s:,.0f} tokens/s")
    if summary.speed.peak_memory_gb is not None:
        parts.append(f"{summary.speed.peak_memory_gb:.1f} GB at most")
    return ", ".join(parts)


def _open(path: Path) -> TrajectoryStore:
    return TrajectoryStore(RunFolder.open(path).trajectories, read_only=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        words = index == 0 or column in _LEFT
        table.add_column(column, justify="left" if words else "right")
    return table


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(sanitise(text), style=style))
