"""The stages of a run, in process, on the tiny model."""

import json
from pathlib import Path

import pytest

from practicum import build, stages
from practicum.config import RunConfig, load_recipe
from practicum.errors import StoreError, UsageError
from practicum.observe.evals import read_evals


def small(output: Path, **overrides: str) -> RunConfig:
    settings = {
        "output": f'"{output}"',
        "sft.steps": "10",
        "train.steps": "2",
        "eval.tasks_per_domain": "4",
        "threads": "1",
    }
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_recipe("tiny", settings | dotted)


def test_an_export_that_failed_is_done_again_and_never_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(self: build.Run, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(build.Run, "export", fails)
        with pytest.raises(StoreError, match="No space left"):
            stages.train(small(tmp_path))
    run = tmp_path / "tiny"
    assert not (run / "model").exists()
    stages.resume(run)
    assert (run / "model" / "model.safetensors").exists()
    assert not list(run.glob("model.tmp*"))


async def test_a_blocking_run_is_refused_inside_an_event_loop(tmp_path: Path):
    with pytest.raises(UsageError, match="event loop"):
        stages.train(small(tmp_path))
    assert not list(tmp_path.iterdir())


def test_evaluations_come_before_after_and_as_often_as_asked(tmp_path: Path):
    run = stages.train(small(tmp_path, train__steps="4", eval__every="2"))
    assert [result.step for result in read_evals(run / "eval")] == [0, 2, 4]
    assert [result.version for result in read_evals(run / "eval")] == [0, 2, 4]


def test_a_run_without_evaluation_still_reports(tmp_path: Path):
    run = stages.train(small(tmp_path, eval__tasks_per_domain="0"))
    assert (run / "report.html").exists()
    assert read_evals(run / "eval") == []


def test_the_supervised_stage_alone_gives_a_model_to_train_on(tmp_path: Path):
    run = stages.supervise(small(tmp_path))
    assert json.loads((run / "manifest.json").read_text())["kind"] == "sft"
    with pytest.raises(UsageError, match="not resumed"):
        stages.resume(run)
    model = f'"{run / "model"}"'
    trained = stages.train(small(tmp_path, model__path=model, sft__steps="0"))
    assert read_evals(trained / "eval")[0].policy == "model"


def test_stale_rollouts_stay_within_their_bound_on_real_parts(tmp_path: Path):
    run = stages.train(small(tmp_path, train__steps="6", rollout__max_staleness="2"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert all(row["staleness/max"] <= 2 for row in rows)
    assert max(row["staleness/max"] for row in rows) > 0, "rollouts never ran ahead"
