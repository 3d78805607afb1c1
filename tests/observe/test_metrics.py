"""metrics.jsonl after kills, resumes and repetitions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from practicum.errors import StoreError
from practicum.observe.metrics import MetricsLog, read_metrics


def test_rows_come_back_in_order_and_survive_reopening(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "run")
    log.log(0, {"reward/mean": 0.1, "time/train_s": 2.5})
    log.log(1, {"reward/mean": 1 / 3})
    assert MetricsLog(tmp_path / "run").rows() == log.rows() == [
        {"step": 0, "reward/mean": 0.1, "time/train_s": 2.5},
        {"step": 1, "reward/mean": 1 / 3},
    ]  # fmt: skip


def test_values_without_a_json_word_keep_every_parser_happy(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.log(0, {"a": math.nan, "b": -math.inf})
    json.loads(log.path.read_text(), parse_constant=lambda word: pytest.fail(f"not JSON: {word}"))
    (row,) = log.rows()
    assert math.isnan(row["a"])
    assert row["b"] == -math.inf


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_a_torn_last_line_is_passed_over_and_then_removed(tmp_path: Path, cut: int) -> None:
    log = MetricsLog(tmp_path)
    log.log(0, {"reward/mean": 0.25})
    log.log(1, {"reward/mean": 0.375})
    log.path.write_bytes(log.path.read_bytes()[:-cut])
    assert [row["step"] for row in read_metrics(log.path)] == [0]
    resumed = MetricsLog(tmp_path)
    resumed.log(1, {"reward/mean": 0.5})
    assert [row["reward/mean"] for row in resumed.rows()] == [0.25, 0.5]


def test_damage_elsewhere_is_named_by_its_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(3):
        log.log(step, {})
    lines = log.path.read_text().splitlines()
    log.path.write_text("\n".join([lines[0], "{broken", lines[2], ""]))
    with pytest.raises(StoreError, match="line 2 is damaged"):
        log.rows()


def test_a_step_is_logged_once_unless_the_log_was_rewound(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(5):
        log.log(step, {"x": step})
    with pytest.raises(StoreError, match="already holds step 4, so step 3 cannot follow"):
        log.log(3, {"x": 0})
    log.rewind(3)
    log.log(3, {"x": 30})
    assert [row["x"] for row in MetricsLog(tmp_path).rows()] == [0, 1, 2, 30]
    log.rewind(0)
    assert log.rows() == []
    log.log(0, {"x": 1})


def test_the_digest_sees_results_and_not_the_clock(tmp_path: Path) -> None:
    def digest(name: str, reward: float, seconds: float, memory: float) -> str:
        log = MetricsLog(tmp_path / name)
        log.log(0, {"reward/mean": reward, "time/step_s": seconds, "memory/peak_gb": memory})
        return log.digest()

    assert digest("a", 0.1, 1.0, 2.0) == digest("b", 0.1, 7.0, 3.0)
    assert digest("c", 0.1, 1.0, 2.0) != digest("d", math.nextafter(0.1, 1), 1.0, 2.0)


def test_reading_what_is_not_there_gives_nothing(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("step", ["Infinity", '"inf"', "null", "NaN"])
def test_a_step_that_is_no_number_is_named_by_its_line(tmp_path: Path, step: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
    with pytest.raises(StoreError, match="line 1 is damaged"):
        read_metrics(tmp_path / "metrics.jsonl")
