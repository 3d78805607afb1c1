"""Runs killed at any moment, and metrics of a training that diverged: all can be looked at."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from practicum.config import RunConfig
from practicum.errors import StoreError, UsageError
from practicum.observe.html import write_report
from practicum.observe.metrics import MetricsLog, read_metrics
from practicum.observe.run_folder import RunFolder
from practicum.observe.store import TrajectoryStore
from practicum.observe.summary import summarise
from practicum.observe.view import view_run, view_trajectories, view_trajectory
from practicum.verdicts import Group


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was only just created."""
    with RunFolder.create(tmp_path, "demo", RunConfig()) as folder:
        return folder.path


def look(path: Path) -> str:
    """All that a person can ask to see of a run, as one text."""
    console = Console(file=io.StringIO(), width=120, color_system=None)
    view_run(path, console)
    view_run(path, console, as_json=True)
    view_trajectories(path, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue() + write_report(path).read_text()


def test_a_run_that_was_only_created(run: Path) -> None:
    text = look(run)
    assert "0 of 45 steps" in text
    assert "makes no claim about progress" in text
    assert "No step has been trained yet" in text
    with pytest.raises(UsageError, match="no trajectory 'g1-0'"):
        view_trajectory(run, "g1-0", Console(file=io.StringIO()))


def test_a_run_of_nothing_but_configuration_and_manifest(run: Path) -> None:
    for found in list(run.iterdir()):
        if found.name not in ("config.json", "manifest.json"):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    assert read_metrics(run / "metrics.jsonl") == []
    assert "0 of 45 steps" in look(run)
    assert sorted(path.name for path in run.iterdir()) == [
        "config.json", "manifest.json", "report.html",
    ]  # fmt: skip


def test_a_run_killed_as_its_files_were_created(run: Path) -> None:
    for name in ("metrics.jsonl", "log.jsonl", "trajectories/ledger.sqlite",
                 "trajectories/index.sqlite"):  # fmt: skip
        (run / name).touch()
    (run / "eval" / "000000.json.tmp-12ab").write_text('{"step": 0, "pol')
    assert "0 of 45 steps" in look(run)


def test_a_run_killed_in_its_first_step(run: Path, make_group: Callable[..., Group]) -> None:
    store = TrajectoryStore(run / "trajectories")
    store.append(make_group("g1"))
    store.close()
    (run / "metrics.jsonl").write_text('{"step": 0, "reward/me')
    (run / "log.jsonl").write_text('{"time": 1.0, "event": "fin')
    text = look(run)
    assert "0 of 45 steps" in text
    assert "2 scored" in text
    assert "1 infra_failure" in text


def test_metrics_without_a_store(run: Path) -> None:
    log = MetricsLog(run)
    log.log(0, {"reward/mean": 0.5, "reward/addition": 0.5, "groups/addition": 4.0})
    log.close()
    shutil.rmtree(run / "trajectories")
    assert "1 of 45 steps" in look(run)


@pytest.mark.parametrize("num_finite", [0, 1, 3])
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_metrics_of_a_training_that_diverged(run: Path, odd: float, num_finite: int) -> None:
    row = {
        "reward/mean": 0.5, "reward/low": 0.4, "reward/high": 0.6, "reward/addition": 0.5,
        "groups/addition": 4.0, "groups/dropped": 1.0, "groups/signal_share": 0.5,
        "attempts/scored": 32.0, "tokens/sampled": 100.0, "tokens/prompt": 50.0,
        "train/grad_norm": 3.0, "train/entropy": 0.5, "memory/peak_gb": 1.0,
        "time/step_s": 2.0, "time/rollout_s": 1.0, "time/verify_s": 0.1,
    }  # fmt: skip
    log = MetricsLog(run)
    for step in range(num_finite):
        log.log(step, row)
    log.log(num_finite, dict.fromkeys(row, odd))
    log.log(num_finite + 1, {"reward/mean": 0.5, "reward/reversal": odd})
    log.close()
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[num_finite])[
        "train/grad_norm"
    ] == str(odd)
    assert f"{num_finite + 2} of 45 steps" in look(run)
    summary = summarise(run)
    assert summary.num_dropped_groups == num_finite
    assert summary.speed.sampled_tokens == 100.0 * num_finite
    assert summary.speed.tokens_per_s == (100.0 if num_finite else None)


@pytest.mark.parametrize("content", ["[1", "3", "null"])
def test_a_damaged_vocabulary_is_named(run: Path, content: str) -> None:
    (run / "vocabulary.json").write_text(content)
    with pytest.raises(StoreError, match=r"cannot read .*vocabulary\.json.*remove it"):
        write_report(run)


def test_a_run_without_its_configuration_is_named(run: Path) -> None:
    (run / "config.json").unlink()
    with pytest.raises(StoreError, match=r"cannot read .*config\.json"):
        write_report(run)


def test_a_manifest_of_a_format_and_nothing_else(run: Path) -> None:
    (run / "manifest.json").write_text('{"format": 1}')
    assert "run demo, 0 of 45 steps" in look(run)
