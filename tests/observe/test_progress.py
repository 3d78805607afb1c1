"""The table and the line, as a terminal and a pipe receive them."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from practicum.observe.progress import LiveProgress, progress
from practicum.observe.step_numbers import read_step
from practicum.statistics import Interval

ROW = {
    "reward/mean": 0.43, "reward/low": 0.18, "reward/high": 0.68, "reward/addition": 0.52,
    "reward/reversal": 0.31, "groups/addition": 7.0, "groups/reversal": 5.0,
    "groups/signal_share": 0.83, "groups/dropped": 1.0, "tokens/sampled": 1240.0,
    "time/rollout_s": 3.1, "time/train_s": 1.9, "time/verify_s": 0.2, "time/step_s": 5.2,
    "time/backward_s": 1.1,
    "attempts/scored": 95.0, "attempts/infra_failure": 1.0,
}  # fmt: skip


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=120, color_system=None), out


def test_a_pipe_gets_one_plain_line_per_step() -> None:
    pipe, out = console(terminal=False)
    with progress(45, pipe) as sink:
        for step in range(3):
            sink.log(step, ROW)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        "step 1/45  reward 0.43 [0.18, 0.68]  signal 83 %  400 tok/s  5.2 s (rollout 3.1 s with "
        "verify 0.2 s, train 1.9 s, other 0.2 s)  ETA 3 min 49 s  addition 0.52 reversal 0.31"
    )


def test_a_terminal_gets_a_table_that_grows_with_the_run() -> None:
    terminal, out = console(terminal=True)
    with progress(45, terminal) as sink:
        assert isinstance(sink, LiveProgress)
        sink.log(0, ROW)
        sink.log(1, ROW | {"reward/mean": 0.6, "reward/low": 0.35, "reward/addition": 0.8})
    final = out.getvalue().rsplit("step 2/45", 1)[1]
    assert "0.60 [0.35, 0.68]" in final
    assert "▁█" in final
    assert "400 tok/s" in final
    assert "about 3 min 44 s left" in final


def test_a_row_with_nothing_in_it_is_no_error() -> None:
    for terminal in (True, False):
        where, out = console(terminal=terminal)
        with progress(2, where) as sink:
            sink.log(0, {})
        assert "step 1/2" in out.getvalue()


def test_a_hostile_domain_name_is_inert() -> None:
    name = "reward/[red]x[/red]\x1b]8;;http://evil\x07\u202e"
    for terminal in (True, False):
        where, out = console(terminal=terminal)
        with progress(2, where) as sink:
            sink.log(0, {name: 1.0})
        assert "[red]x[/red]␛]8;;http://evil␇⟨U+202E⟩"[:30] in out.getvalue()
        assert "\x1b]8" not in out.getvalue()
        assert "\u202e" not in out.getvalue()


def test_reading_a_row() -> None:
    numbers = read_step({"step": 4, **ROW})
    assert numbers.domain_rewards == {"addition": 0.52, "reversal": 0.31}
    assert numbers.domain_groups == {"addition": 7, "reversal": 5}
    assert numbers.attempts == {"scored": 95, "infra_failure": 1}
    assert numbers.tokens_per_s == 400.0
    assert list(numbers.phases) == ["rollout", "train", "other"]
    assert numbers.parts == {"rollout": {"verify": 0.2}, "train": {"backward": 1.1}}
    assert (numbers.num_dropped, numbers.peak_memory_gb) == (1, None)
    assert numbers.reward == Interval(0.43, 0.18, 0.68, 12)
    assert read_step({"step": 0, "reward/mean": 0.5}).reward == Interval(
        0.5, -math.inf, math.inf, 0
    )


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_a_row_of_a_training_that_diverged_reads_and_shows(odd: float) -> None:
    row = dict.fromkeys(ROW, odd)
    assert read_step({"step": 4, **row}).domain_groups == {}
    for terminal in (True, False):
        where, out = console(terminal=terminal)
        with progress(2, where) as sink:
            sink.log(0, row)
        assert "step 1/2" in out.getvalue()
