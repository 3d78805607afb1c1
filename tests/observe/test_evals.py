"""The evaluation file and the numbers drawn from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.errors import StoreError, UsageError
from practicum.observe.evals import (
    EvalResult,
    EvalTask,
    accuracy,
    compare,
    drop_later_evals,
    read_eval,
    read_evals,
    write_eval,
)
from practicum.statistics import paired_difference, wilson


def result(step: int, scores: dict[str, float | None]) -> EvalResult:
    """Task ids begin with the domain's letter."""
    names = {"a": "addition", "r": "reversal"}
    tasks = {
        id: EvalTask(names[id[0]], score, "infra_failure" if score is None else "scored", "7")
        for id, score in scores.items()
    }
    return EvalResult(step, "tiny", step, tasks)


def test_an_evaluation_comes_back_as_written(tmp_path: Path) -> None:
    before = result(0, {"r1": 0.5, "a1": None})
    path = write_eval(tmp_path, before)
    assert path.name == "000000.json"
    assert read_eval(path) == before
    document = json.loads(path.read_text())
    assert list(document) == ["step", "policy", "version", "tasks"]
    assert document["tasks"]["a1"] == {
        "domain": "addition", "score": None, "outcome": "infra_failure", "response": "7",
    }  # fmt: skip


def test_the_same_step_again_replaces_the_file_and_all_are_read_in_order(tmp_path: Path) -> None:
    write_eval(tmp_path, result(15, {"a1": 1.0}))
    write_eval(tmp_path, result(0, {"a1": 0.0}))
    write_eval(tmp_path, result(15, {"a1": 0.5}))
    assert [(r.step, r.tasks["a1"].score) for r in read_evals(tmp_path)] == [(0, 0.0), (15, 0.5)]


def test_a_missing_and_a_damaged_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no evaluation"):
        read_eval(tmp_path / "000000.json")
    (tmp_path / "000000.json").write_text('{"step": 0, "policy"')
    with pytest.raises(StoreError, match=r"000000\.json cannot be read"):
        read_eval(tmp_path / "000000.json")


def test_odd_text_of_a_model_does_not_lose_the_evaluation(tmp_path: Path) -> None:
    odd = EvalResult(0, "tiny", 0, {"a": EvalTask("addition", 1.0, "scored", "\udead 7")})
    assert read_eval(write_eval(tmp_path, odd)).tasks["a"].response == "\ufffd 7"


def test_unscored_tasks_count_as_zero_in_the_headline_and_are_shown_beside_it() -> None:
    found = accuracy(result(0, {"a1": 1.0, "a2": 1.0, "a3": 0.0, "a4": None}))
    assert found.strict == wilson(2, 4)
    assert found.scored == wilson(2, 3)
    assert found.num_unscored == 1
    nothing = accuracy(result(0, {"a1": None}))
    assert nothing.scored is None
    assert nothing.strict.mean == 0.0


def test_graded_scores_get_a_t_interval() -> None:
    found = accuracy(result(0, {"a1": 0.5, "a2": 0.7})).strict
    assert found.mean == pytest.approx(0.6)
    assert found.high > 1.0  # two values say little


def test_comparison_is_paired_overall_and_by_domain() -> None:
    before = result(0, {"a1": 0.0, "a2": 0.0, "r1": 1.0, "r2": None})
    after = result(9, {"r2": 1.0, "r1": 1.0, "a2": 0.0, "a1": 1.0})
    overall, addition, reversal = compare(before, after)
    assert [overall.domain, addition.domain, reversal.domain] == [None, "addition", "reversal"]
    assert addition.strict == paired_difference({"1": 0.0, "2": 0.0}, {"1": 1.0, "2": 0.0})
    assert addition.scored == addition.strict
    assert addition.bounds == (0.5, 0.5)
    assert reversal.strict.mean == 0.5
    assert reversal.scored is not None
    assert (reversal.scored.mean, reversal.scored.n) == (0.0, 1)
    assert reversal.bounds == (0.0, 0.5)
    assert overall.strict.mean == 0.5


def test_other_tasks_after_than_before_are_refused() -> None:
    with pytest.raises(UsageError, match="did not see the same tasks"):
        compare(result(0, {"a1": 0.0}), result(9, {"a2": 0.0}))
    with pytest.raises(UsageError, match="no task of domain 'reversal'"):
        accuracy(result(0, {"a1": 0.0}), "reversal")


def test_evaluations_of_abandoned_steps_are_dropped_and_no_others(tmp_path: Path) -> None:
    for step in (0, 9, 15, 1_000_000):
        write_eval(tmp_path, result(step, {"a1": 1.0}))
    (tmp_path / "000020.json").write_text("damaged")
    (tmp_path / "mine.json").write_text("{}")
    drop_later_evals(tmp_path, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "000000.json", "000009.json", "mine.json",
    ]  # fmt: skip
    drop_later_evals(tmp_path / "none", 0)
