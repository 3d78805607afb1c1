"""A run summarised from its files: numbers traced back to what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from practicum.config import resolve
from practicum.errors import UsageError
from practicum.observe.cards import card
from practicum.observe.curves import health_curves, reward_curves
from practicum.observe.metrics import read_metrics
from practicum.observe.run_folder import RunFolder
from practicum.observe.sampling import choose
from practicum.observe.step_numbers import read_step
from practicum.observe.store import TrajectoryStore
from practicum.observe.summary import summarise
from practicum.verdicts import Group

BuildRun = Callable[..., Path]


def test_the_whole_run_is_there(finished_run: Path) -> None:
    summary = summarise(finished_run)
    assert summary.model == "SmolLM2-135M-Instruct (from Q4_1)"
    assert summary.steps_done == 9
    assert summary.num_trajectories == sum(summary.outcomes.values()) == 9 * 8 * 4
    assert summary.num_dropped_groups == 2  # one each in the steps 3 and 7
    assert summary.compared_steps == (0, 9)
    assert [c.domain for c in summary.comparisons] == [
        None, "addition", "max_of_three", "reversal", "transitive",
    ]  # fmt: skip
    assert sum(c.strict.n for c in summary.comparisons[1:]) == summary.comparisons[0].strict.n
    assert len(summary.reward) == 9
    assert sum(share.realised for share in summary.mix) == pytest.approx(1)
    assert {share.target for share in summary.mix} == {0.25}
    assert set(summary.speed.phases) == {"rollout", "train", "other"}
    assert sum(summary.speed.phases.values()) == pytest.approx(summary.speed.seconds)
    assert summary.speed.peak_memory_gb == 1.9
    assert len(summary.samples) == 20
    assert {name for name, _ in summary.provenance} >= {"Seed", "Versions", "Metrics digest"}
    assert len(summary.verifiers) == 4


def test_each_step_of_the_reward_curve_is_the_mean_that_was_logged(finished_run: Path) -> None:
    summary, metrics = summarise(finished_run), read_metrics(finished_run / "metrics.jsonl")
    logged = [row["reward/mean"] for row in metrics]
    assert [point.mean for point in summary.reward] == pytest.approx(logged)
    assert all(point.low < point.trend < point.high for point in summary.reward)
    by_domain = [row.get("reward/addition") for row in metrics]
    drawn = [point.mean for point in summary.domain_rewards["addition"]]
    assert drawn == pytest.approx([value for value in by_domain if value is not None])


def test_without_a_store_the_metrics_draw_the_curve(finished_run: Path) -> None:
    metrics = read_metrics(finished_run / "metrics.jsonl")
    overall, by_domain = reward_curves([], {}, metrics)
    assert [p.mean for p in overall] == [row["reward/mean"] for row in metrics]
    assert set(by_domain) == {"addition", "max_of_three", "reversal", "transitive"}


def test_health_draws_what_was_logged_and_is_not_always_zero(finished_run: Path) -> None:
    titles = [title for title, _ in health_curves(read_metrics(finished_run / "metrics.jsonl"))]
    assert "Token entropy" in titles
    assert "Staleness, versions" not in titles


def test_a_run_stopped_before_its_second_evaluation_makes_no_claim(
    tmp_path: Path, build_run: BuildRun
) -> None:
    run = build_run(tmp_path, num_steps=9, stop_after=2, groups_per_step=4, group_size=4)
    summary = summarise(run)
    assert summary.steps_done == 2
    assert summary.comparisons == ()
    assert [step for step, _ in summary.evals] == [0]


def test_an_empty_run_reads_too(tmp_path: Path, build_run: BuildRun) -> None:
    run = build_run(tmp_path, stop_after=0, tasks_per_domain=0)
    summary = summarise(run)
    assert summary.num_trajectories == 0
    assert summary.reward == ()
    assert summary.samples == ()


def test_reading_does_not_change_the_run(finished_run: Path) -> None:
    def state() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in finished_run.rglob("*.parquet")}

    before = state()
    summarise(finished_run)
    assert state() == before


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run folder"):
        summarise(tmp_path)


def test_rows_of_an_older_version_with_fewer_keys_still_read(
    tmp_path: Path, build_run: BuildRun
) -> None:
    run = build_run(tmp_path, num_steps=3, groups_per_step=4, group_size=4, tasks_per_domain=5)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 0}) + "\n")
    summary = summarise(run)
    assert summary.speed.tokens_per_s is None
    assert summary.speed.phases == {}


def test_the_target_of_a_domain_is_its_share_with_the_floor(tmp_path: Path) -> None:
    domains = {"shares": {"addition": 99.0, "reversal": 1.0}, "floor": 0.2}
    config = resolve({"domains": domains}, {})
    RunFolder.create(tmp_path, "demo", config).close()
    found = {share.domain: share.target for share in summarise(tmp_path / "demo").mix}
    assert found == {"addition": 0.8, "reversal": 0.2}


def test_the_speed_of_the_run_is_that_of_its_steps(finished_run: Path) -> None:
    steps = [read_step(row) for row in read_metrics(finished_run / "metrics.jsonl")]
    speed = summarise(finished_run).speed
    assert speed.tokens_per_s is not None
    rollout_s = sum(step.phases["rollout"] for step in steps)
    tokens = [(step.tokens_per_s or 0.0) * step.phases["rollout"] for step in steps]
    assert speed.tokens_per_s == pytest.approx(sum(tokens) / rollout_s)


def test_samples_cover_domains_endings_and_both_ends_of_the_run(finished_run: Path) -> None:
    store = TrajectoryStore(finished_run / "trajectories", read_only=True)
    rows, steps = store.rows(), store.ledger.steps()
    chosen = choose(rows, steps, 20)
    assert chosen == choose(list(reversed(rows)), steps, 20)
    assert len({row.trajectory_id for row in chosen}) == 20
    cells = {(row.domain, (row.score or 0) >= 0.5, steps[row.group_id] >= 6) for row in chosen}
    possible = {
        (row.domain, row.score >= 0.5, steps[row.group_id] >= 6)
        for row in rows
        if row.score is not None and not 3 <= steps[row.group_id] < 6
    }
    assert possible <= cells
    assert choose(rows, steps, 3) != []
    assert choose(rows, {}, 20) == []


def test_a_card_shows_each_sampled_token_with_what_is_known_of_it(
    tmp_path: Path, make_group: Callable[..., Group]
) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("g1", answers=("789", ""), version=4))
    vocabulary = [chr(i) for i in range(128)]
    good = card(store.trajectory("g1-0"), vocabulary)
    assert [token.text for token in good.tokens] == ["7", "8", "9"]
    assert good.tokens[1].note == "log-prob −0.200 (81.9 %), weights version 4, token 56"
    assert [token.surprise for token in good.tokens] == [0, 1, 1]
    assert good.prompt == (("text", "3+4="),)
    assert good.turns == (("assistant", "789"),)
    assert (good.ending, good.grade) == ("failed", "bad")
    lost = card(store.trajectory("g1-1"), None)
    assert (lost.ending, lost.grade, lost.reward) == ("infra failure", "none", None)
    assert lost.failure == "sandbox_lost: the sandbox went away"
    assert card(store.trajectory("g1-0"), None).tokens[0].text == "#55"
