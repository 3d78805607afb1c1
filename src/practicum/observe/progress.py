"""What a person sees while a run goes on: a live table in a terminal, one line per step elsewhere.

Names of domains are not ours (packages add domains), so text is sanitised and never read as markup.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from practicum.observe.hostile import one_line
from practicum.observe.step_numbers import StepNumbers, read_step
from practicum.observe.wording import duration, fixed, mean_and_interval, percent, sparkline

_RECENT_STEPS = 10
"""Steps whose time foretells that of the next ones."""


class Progress(Protocol):
    """A sink that is also a context: the table is drawn while it is open."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def progress(total_steps: int, console: Console | None = None) -> Progress:
    """The live table if the console is a terminal, else lines."""
    console = console or Console()
    return (
        LiveProgress(total_steps, console) if console.is_terminal else Lines(total_steps, console)
    )


class Lines:
    """One line per step, for logs and pipes."""

    def __init__(self, total_steps: int, console: Console) -> None:
        self._total = total_steps
        self._console = console
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = read_step({"step": step, **metrics})
        self._recent.extend([numbers.seconds] if numbers.seconds else [])
        text = Text(step_line(numbers, self._total, _eta(self._recent, step, self._total)))
        self._console.print(text, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class LiveProgress:
    """A table that is redrawn in place after each step."""

    def __init__(self, total_steps: int, console: Console) -> None:
        self._total = total_steps
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._rewards: list[float] = []
        self._domain_rewards: defaultdict[str, list[float]] = defaultdict(list)
        self._live = Live(Text("waiting for the first step"), console=console, auto_refresh=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = read_step({"step": step, **metrics})
        self._recent.extend([numbers.seconds] if numbers.seconds else [])
        self._rewards.extend([numbers.reward.mean] if numbers.reward else [])
        for domain, reward in numbers.domain_rewards.items():
            self._domain_rewards[domain].append(reward)
        self._live.update(self._render(numbers), refresh=True)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self, numbers: StepNumbers) -> RenderableType:
        eta = _eta(self._recent, numbers.step, self._total)
        top = Table.grid(padding=(0, 2))
        top.add_row(
            Text(f"step {numbers.step + 1}/{self._total}", style="bold"),
            ProgressBar(total=self._total, completed=numbers.step + 1, width=40),
            Text(f"about {duration(eta)} left" if eta is not None else ""),
        )
        facts = Table.grid(padding=(0, 2))
        if numbers.reward is not None:
            spark = Text(sparkline(self._rewards), style="green")
            facts.add_row("reward", Text(mean_and_interval(numbers.reward), style="bold"), spark)
        if numbers.signal_share is not None:
            facts.add_row("signal", Text(percent(numbers.signal_share)), "groups that disagree")
        if numbers.tokens_per_s is not None:
            facts.add_row("speed", Text(f"{numbers.tokens_per_s:,.0f} tok/s"), "sampled")
        if numbers.seconds is not None:
            facts.add_row("time", Text(duration(numbers.seconds)), Text(_phases(numbers)))
        return Group(top, facts, self._domains(numbers))

    def _domains(self, numbers: StepNumbers) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("domain")
        table.add_column("groups", justify="right")
        table.add_column("reward", justify="right")
        table.add_column("so far")
        for domain, rewards in sorted(self._domain_rewards.items()):
            now = numbers.domain_rewards.get(domain)
            table.add_row(
                Text(one_line(domain, 32)),
                Text(str(numbers.domain_groups.get(domain, 0))),
                Text(fixed(now) if now is not None else "–"),
                Text(sparkline(rewards), style="green"),
            )
        return table


def step_line(numbers: StepNumbers, total: int, eta_s: float | None) -> str:
    """Everything of one step in one line; what is unknown is left out."""
    parts = [f"step {numbers.step + 1}/{total}"]
    if numbers.reward is not None:
        parts.append(f"reward {mean_and_interval(numbers.reward)}")
    if numbers.signal_share is not None:
        parts.append(f"signal {percent(numbers.signal_share)}")
    if numbers.tokens_per_s is not None:
        parts.append(f"{numbers.tokens_per_s:,.0f} tok/s")
    if numbers.seconds is not None:
        parts.append(f"{duration(numbers.seconds)} ({_phases(numbers)})")
    if eta_s is not None:
        parts.append(f"ETA {duration(eta_s)}")
    if numbers.domain_rewards:
        domains = sorted(numbers.domain_rewards.items())
        parts.append(" ".join(f"{one_line(name, 32)} {fixed(reward)}" for name, reward in domains))
    return "  ".join(parts)


def _phases(numbers: StepNumbers) -> str:
    """Wall-clock time of each phase; verifying, which lies within the rollouts, beside it."""
    verify_s = numbers.parts.get("rollout", {}).get("verify")
    aside = {"rollout": f" with verify {duration(verify_s)}"} if verify_s is not None else {}
    return ", ".join(
        f"{one_line(name, 20)} {duration(value)}{aside.get(name, '')}"
        for name, value in numbers.phases.items()
    )


def _eta(recent: deque[float], step: int, total: int) -> float | None:
    """Seconds left if the remaining steps take as long as the recent ones."""
    return sum(recent) / len(recent) * (total - step - 1) if recent else None
