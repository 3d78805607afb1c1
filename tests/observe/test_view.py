"""What the terminal shows of a run, and that nothing in it can act."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from practicum.errors import UsageError
from practicum.observe.store import TrajectoryStore
from practicum.observe.view import view_run, view_trajectories, view_trajectory
from practicum.types import Message, Outcome
from practicum.verdicts import Group

HOSTILE = "[bold red]x[/] [link=http://evil]y[/link] \x1b]8;;http://evil\x07z\x1b[2J \u202egnp"


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=120, color_system=None, force_terminal=True)


def shown(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_a_run_at_a_glance(finished_run: Path, screen: Console) -> None:
    view_run(finished_run, screen)
    text = shown(screen)
    assert "SmolLM2-135M-Instruct (from Q4_1)" in text
    assert "9 of 9 steps" in text
    assert "Accuracy rose from" in text
    assert "max_of_three" in text
    assert "▁" in text
    view_run(finished_run, screen, trajectory_id="000-00-0")
    assert "trajectory 000-00-0" in shown(screen)


def test_trajectories_are_listed_by_domain_and_outcome(finished_run: Path, screen: Console) -> None:
    view_trajectories(finished_run, screen, domain="addition", limit=3)
    assert "3 of 72 trajectories" in shown(screen)
    view_trajectories(finished_run, screen, outcome=Outcome.GRADER_FAILURE)
    assert "0 of 0 trajectories" in shown(screen)


def test_one_trajectory_in_full(finished_run: Path, screen: Console) -> None:
    view_trajectory(finished_run, "000-00-0", screen)
    text = shown(screen)
    assert "trajectory 000-00-0" in text
    assert "What is" in text
    assert "gave the reward" in text
    assert "weights version 0" in text
    with pytest.raises(UsageError, match="Did you mean"):
        view_trajectory(finished_run, "000-00-00", screen)


def test_programs_get_json(finished_run: Path, screen: Console) -> None:
    view_run(finished_run, screen, as_json=True)
    run = json.loads(shown(screen))
    assert run["steps_done"] == 9
    assert run["comparisons"][0]["domain"] is None
    assert len(run["reward"]) == 9
    screen.file = io.StringIO()
    view_run(finished_run, screen, trajectory_id="000-00-0", as_json=True)
    found = json.loads(shown(screen))
    assert found["trajectory"]["id"] == "000-00-0"
    assert found["step"] == 0
    assert len(found["trajectory"]["segments"][0]["logprobs"]) > 5
    assert shown(screen).isascii()


def test_hostile_text_reaches_the_terminal_as_text(
    tmp_path: Path,
    screen: Console,
    make_group: Callable[..., Group],
    build_run: Callable[..., Path],
) -> None:
    run = build_run(tmp_path, stop_after=0, tasks_per_domain=0)
    group = make_group("g1", answers=("7",), domain=HOSTILE)
    said = dataclasses.replace(group.trajectories[0], messages=(Message("assistant", HOSTILE),))
    verdict = dataclasses.replace(group.verdicts["g1-0"], evidence=HOSTILE)
    store = TrajectoryStore(run / "trajectories")
    store.append(dataclasses.replace(group, trajectories=(said,), verdicts={"g1-0": verdict}))
    store.close()
    view_trajectory(run, "g1-0", screen)
    view_trajectories(run, screen)
    view_run(run, screen)
    text = shown(screen)
    assert "[bold red]x[/] [link=http://evil]y[/link] ␛]8;;http://evil␇z␛[2J ⟨U+202E⟩gnp" in text
    assert "\x1b]8" not in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
