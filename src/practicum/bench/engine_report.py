"""The tables of `practicum bench engine`; every ratio is to ours in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from practicum.bench.engine_contenders import OURS, ROOFS
from practicum.bench.rollout_workload import ROWS

if TYPE_CHECKING:
    from practicum.bench.engine import Measured

OURS_NAME, ROOF_NAME = next(iter(OURS)), next(iter(ROOFS))


def show(measured: Sequence[Measured], parts: Sequence[str]) -> None:
    """Print a table for each part and number of threads, then the notes."""
    console = Console()
    tables = {
        "rollout": _rollout,
        "rows": _rows,
        "shared": _shared,
        "turns": _turns,
        "frontier": _frontier,
    }
    for num_threads in dict.fromkeys(m.num_threads for m in measured):
        of_threads = [m for m in measured if m.num_threads == num_threads]
        present = [m for m in of_threads if not m.absent]
        for part in parts:
            console.print(tables[part](present, f"{num_threads} thread{'s' * (num_threads > 1)}"))
        for one in of_threads:
            for remark in filter(None, (one.absent, one.note)):
                console.print(f"{one.name}: {remark}")


def _rollout(measured: Sequence[Measured], threads: str) -> Table:
    table = _table(
        f"Rollout, 16 prompts x 4 samples, {threads}",
        "tok/cpu-s",
        "slowest",
        "x ours",
        "of roof",
        "tok/s",
        "peak MB",
        "start s",
        "start cpu-s",
        "update ms",
    )
    ours, roof = (_speed(measured, name, "rollout") for name in (OURS_NAME, ROOF_NAME))
    for one in measured:
        figure = one.figures["rollout"]
        is_roof = one.name in ROOFS
        table.add_row(
            one.name,
            f"{figure.tokens_per_cpu_s:.0f}",
            f"{figure.slowest_per_cpu_s:.0f}",
            f"{figure.tokens_per_cpu_s / ours:.2f}",
            f"{figure.tokens_per_cpu_s / roof:.0%}",
            f"{figure.tokens_per_s:.0f}",
            "" if is_roof else f"{figure.peak_mb:.0f}",
            "" if is_roof else f"{one.start_s:.1f}",
            "" if is_roof else f"{one.start_cpu_s:.1f}",
            "" if one.update_s is None else f"{1000 * one.update_s:.1f}",
        )
    return table


def _rows(measured: Sequence[Measured], threads: str) -> Table:
    table = _table(
        f"Rows in the batch, tok/cpu-s (x ours), {threads}",
        *(f"{rows}" for rows in ROWS),
        "ms/token at 1",
    )
    for one in measured:
        cells: list[str] = []
        for rows in ROWS:
            ours = _speed(measured, OURS_NAME, f"{rows} rows")
            speed = one.figures[f"{rows} rows"].tokens_per_cpu_s
            cells.append(f"{speed:.0f} ({speed / ours:.2f})")
        table.add_row(one.name, *cells, f"{1000 / one.figures['1 rows'].tokens_per_s:.1f}")
    return table


def _shared(measured: Sequence[Measured], threads: str) -> Table:
    title = f"One prompt of 2,000 tokens x 16 samples, tok/cpu-s, {threads}"
    return _pair(measured, title, "shared prompt", "copied prompt")


def _turns(measured: Sequence[Measured], threads: str) -> Table:
    title = f"8 conversations x 4 turns with tool output, tok/cpu-s, {threads}"
    return _pair(measured, title, "turns", "turns without reuse")


def _pair(measured: Sequence[Measured], title: str, reusing: str, fresh: str) -> Table:
    table = _table(title, reusing, "x ours", "reused", fresh, "gain")
    ours = _speed(measured, OURS_NAME, reusing)
    for one in measured:
        figure, other = one.figures[reusing], one.figures[fresh]
        table.add_row(
            one.name,
            f"{figure.tokens_per_cpu_s:.0f}",
            f"{figure.tokens_per_cpu_s / ours:.2f}",
            "" if figure.reused is None else f"{figure.reused:.0%}",
            f"{other.tokens_per_cpu_s:.0f}",
            f"{figure.tokens_per_cpu_s / other.tokens_per_cpu_s:.2f}",
        )
    return table


def _frontier(measured: Sequence[Measured], threads: str) -> Table:
    table = _table(
        f"Precision, {threads}", "tok/cpu-s", "x ours", "KL to float32", "+-", "mean |d log p|"
    )
    ours = _speed(measured, OURS_NAME, "rollout")
    for one in measured:
        if one.kl is None:
            continue
        speed = one.figures["rollout"].tokens_per_cpu_s
        table.add_row(
            one.name,
            f"{speed:.0f}",
            f"{speed / ours:.2f}",
            f"{one.kl['kl']:.1e}",
            f"{one.kl['kl_error']:.0e}",
            f"{one.kl['mean_difference']:.4f}",
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _speed(measured: Sequence[Measured], name: str, work: str) -> float:
    return next(m for m in measured if m.name == name).figures[work].tokens_per_cpu_s
