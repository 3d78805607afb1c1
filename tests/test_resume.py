"""A run that is killed for real in the middle of a step, and goes on as if nothing had happened."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from practicum.observe.metrics import metrics_digest, read_metrics
from practicum.observe.store import TrajectoryStore

RECIPE = [
    *("--sft.steps", "20", "--train.steps", "6", "--checkpoint.every", "2"),
    *("--eval.tasks_per_domain", "8", "--threads", "1"),
]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "practicum", *words]


def finish(*words: str) -> str:
    ran = subprocess.run(command(*words), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def digests(run: Path) -> dict[str, str]:
    """What must be equal: weights, optimizer, metrics, and what was trained on."""
    trainer = json.loads((run / "ckpt" / "000006" / "trainer.json").read_text())
    store = TrajectoryStore(run / "trajectories", read_only=True)
    return {
        **trainer["digests"],
        "metrics": metrics_digest(read_metrics(run / "metrics.jsonl")),
        "ledger": repr(sorted(store.ledger.steps().items())),
        "eval": (run / "eval" / "000006.json").read_text(),
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole")
    finish("train", "tiny", "--output", str(output), *RECIPE)
    return output / "tiny"


@pytest.mark.slow
@pytest.mark.parametrize("killed_in_step", [0, 3, 5])
def test_kill_9_and_resume_equals_the_uninterrupted_run(
    uninterrupted: Path, tmp_path: Path, killed_in_step: int
):
    process = subprocess.Popen(
        command("train", "tiny", "--output", str(tmp_path), *RECIPE),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    run = tmp_path / "tiny"
    deadline = time.monotonic() + 200
    while num_stored(run) <= 4 * killed_in_step:  # a group of that step was rolled out
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (run / "report.html").exists()
    finish("resume", str(run))
    assert digests(run) == digests(uninterrupted)
    assert (run / "report.html").exists()


@pytest.mark.slow
def test_a_terminated_run_stops_in_order_with_130_and_resumes(uninterrupted: Path, tmp_path: Path):
    process = subprocess.Popen(
        command("train", "tiny", "--output", str(tmp_path), *RECIPE),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = tmp_path / "tiny"
    while num_stored(run) <= 4:
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.005)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "practicum resume" in stderr
    assert "Traceback" not in stderr
    finish("resume", str(run))
    assert digests(run) == digests(uninterrupted)


@pytest.mark.slow
def test_a_background_job_of_a_script_stops_when_asked(tmp_path: Path):
    """Such jobs start with the interrupt signal ignored."""
    process = subprocess.Popen(
        command("train", "tiny", "--output", str(tmp_path), "--sft.steps", "100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stdout is not None
    assert "warm-up" in process.stdout.readline()
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, "practicum resume" in stderr) == (130, True), stderr


@pytest.mark.slow
def test_a_run_that_lost_its_ledger_is_not_taken_for_whole(uninterrupted: Path, tmp_path: Path):
    run = tmp_path / "copy"
    shutil.copytree(uninterrupted, run)
    for file in (run / "trajectories").glob("ledger*"):
        file.unlink()
    ran = subprocess.run(command("resume", str(run)), capture_output=True, text=True, timeout=100)
    assert ran.returncode == 4
    assert "lost the ledger of step 0" in ran.stderr


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(uninterrupted: Path):
    before = digests(uninterrupted)
    assert "report.html" in finish("resume", str(uninterrupted))
    assert digests(uninterrupted) == before


def num_stored(run: Path) -> int:
    return len(list((run / "trajectories").rglob("*.parquet")))
