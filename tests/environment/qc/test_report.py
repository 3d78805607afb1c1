"""Reports on attempts: what happened in a step, and what it says about tasks and domains."""

import json
from dataclasses import replace

import pytest

from practicum.environment.curriculum import PassRateCurriculum
from practicum.environment.domains import draw_pool, get_domain
from practicum.environment.domains.scripted import scripted
from practicum.environment.qc import EnvQC
from practicum.errors import UsageError
from practicum.types import Failure, Outcome, Task, Trajectory
from practicum.verdicts import Finding, Report, Verdict, VerifierId

NAMES = ("addition", "reversal")
POOL = draw_pool(map(get_domain, NAMES), seed=0, split="train", size=12)
SUM, REVERSAL = (POOL.by_domain[name][0] for name in NAMES)
ID = VerifierId("test", "1", "0")


def group(
    task: Task, scores: list[float | Outcome], name: str = "g"
) -> tuple[list[Trajectory], dict[str, Verdict]]:
    """Attempts at one task: a score, or the outcome that took its place."""
    trajectories: list[Trajectory] = []
    verdicts: dict[str, Verdict] = {}
    for sample, score in enumerate(scores):
        attempt = replace(scripted(task, "x", sample=sample), group_id=f"{name}-{task.id}")
        if isinstance(score, Outcome):
            attempt = replace(attempt, outcome=score, failure=Failure("broken", "on purpose"))
            score = 0.0
        trajectories.append(attempt)
        if attempt.outcome.counts:
            verdicts[attempt.id] = Verdict(score, ID)
    return trajectories, verdicts


def kinds(report: Report) -> list[tuple[str, str]]:
    return [(finding.kind, finding.domain) for finding in report.findings]


def test_a_report_holds_one_result_for_each_group() -> None:
    sums, rewards = group(SUM, [1.0, 0.0, 0.5, Outcome.INFRA_FAILURE])
    reversals, more = group(REVERSAL, [1.0, Outcome.MODEL_FAILURE])
    report = EnvQC(POOL).report(sums + reversals, rewards | more)
    first, second = report.results
    assert (first.task_id, first.domain, first.difficulty) == (SUM.id, "addition", SUM.difficulty)
    assert (first.score_sum, first.num_counted, first.num_attempts) == (1.5, 3, 4)
    assert (second.task_id, second.pass_rate, second.num_attempts) == (REVERSAL.id, 0.5, 2)


def test_failures_are_counted_by_outcome_and_kind() -> None:
    outcomes: list[float | Outcome] = [
        Outcome.INFRA_FAILURE,
        Outcome.INFRA_FAILURE,
        Outcome.GRADER_FAILURE,
        Outcome.MODEL_FAILURE,
        Outcome.CANCELLED,
        1.0,
    ]
    report = EnvQC(POOL).report(*group(SUM, outcomes))
    assert report.failures == {
        "cancelled/broken": 1,
        "grader_failure/broken": 1,
        "infra_failure/broken": 2,
        "model_failure/broken": 1,
    }


def test_an_attempt_that_came_back_without_a_verdict_is_a_failure_of_the_grader() -> None:
    trajectories, rewards = group(SUM, [1.0, 0.0])
    del rewards[trajectories[1].id]
    report = EnvQC(POOL).report(trajectories, rewards)
    assert report.failures == {"grader_failure/unscored": 1}
    assert (report.results[0].num_counted, report.results[0].score_sum) == (1, 1.0)


def test_two_groups_at_the_same_task_are_two_results() -> None:
    first, rewards = group(SUM, [1.0], "a")
    second, _ = group(SUM, [1.0], "b")
    second = [replace(trajectory, id=f"other-{trajectory.id}") for trajectory in second]
    rewards |= {trajectory.id: Verdict(0.0, ID) for trajectory in second}
    results = EnvQC(POOL).report(first + second, rewards).results
    assert [result.score_sum for result in results] == [1.0, 0.0]


def test_steps_are_counted_and_observers_get_every_report() -> None:
    seen: list[Report] = []
    qc = EnvQC(POOL, observers=[seen.append])
    reports = [qc.report(*group(SUM, [1.0, 0.0])) for _ in range(3)]
    assert [report.step for report in reports] == [0, 1, 2]
    assert seen == reports


def test_a_curriculum_can_be_an_observer() -> None:
    curriculum = PassRateCurriculum(POOL, dict.fromkeys(NAMES, 1.0), seed=0)
    EnvQC(POOL, observers=[curriculum.observe]).report(*group(SUM, [1.0] * 8))
    passed, failed = curriculum.pass_rates.posterior(SUM)
    assert passed > 4 * failed


def test_a_task_that_never_passes_is_found_once_it_was_tried_often_enough() -> None:
    qc = EnvQC(POOL)
    assert kinds(qc.report(*group(SUM, [0.0] * 8))) == []
    report = qc.report(*group(SUM, [0.0] * 8))
    evidence = f"0 of 16 attempts scored anything (level {SUM.difficulty})"
    assert report.findings == (Finding("never_passes", "addition", evidence, SUM.id),)
    assert kinds(qc.report(*group(SUM, [1.0]))) == []


def test_a_task_that_always_passes_is_found() -> None:
    report = EnvQC(POOL, min_attempts=4).report(*group(REVERSAL, [1.0] * 4))
    assert kinds(report) == [("always_passes", "reversal")]
    assert report.findings[0].task_id == REVERSAL.id


def test_failures_of_the_machinery_do_not_make_a_task_look_impossible() -> None:
    report = EnvQC(POOL, min_attempts=4).report(*group(SUM, [Outcome.INFRA_FAILURE] * 8))
    assert kinds(report) == [("infra_share", "addition")]
    assert report.findings[0].evidence == (
        "8 of 8 attempts (100.0%) lost to the machinery: stop and repair it"
    )


@pytest.mark.parametrize(
    ("num_lost", "advice"), [(1, None), (2, "have a look"), (9, "stop and repair it")]
)
def test_the_share_of_lost_attempts_sets_the_tone(num_lost: int, advice: str | None) -> None:
    lost: list[float | Outcome] = [Outcome.GRADER_FAILURE] * num_lost
    scored: list[float | Outcome] = [1.0, 0.0] * 40
    findings = EnvQC(POOL).report(*group(SUM, lost + scored[num_lost:])).findings
    assert [f.kind for f in findings] == ([] if advice is None else ["grader_share"])
    assert all(finding.evidence.endswith(f"verifier: {advice}") for finding in findings)


def test_cancelled_attempts_do_not_dilute_the_share() -> None:
    attempts: list[float | Outcome] = [Outcome.CANCELLED] * 400
    attempts += [Outcome.INFRA_FAILURE] * 4 + [1.0, 0.0] * 8
    findings = EnvQC(POOL).report(*group(SUM, attempts)).findings
    assert findings[0].evidence.startswith("4 of 20 attempts (20.0%)")


def test_a_domain_whose_groups_agree_has_no_signal() -> None:
    qc = EnvQC(POOL, min_attempts=5)
    tasks = POOL.by_domain["addition"][:5]
    scores: list[list[float | Outcome]] = [
        [1.0, 1.0],
        [1.0, 1.0],
        [0.0, 0.0],
        [0.0, 0.0],
        [1.0, 0.0],
    ]
    report: Report | None = None
    for task, of_task in zip(tasks, scores):
        report = qc.report(*group(task, of_task))
    assert report is not None
    (finding,) = report.findings
    assert finding.kind == "zero_signal"
    assert finding.evidence == (
        "4 of 5 groups had no signal, 2 of them because every attempt passed"
    )


def test_a_group_that_agrees_on_an_unbounded_scale_has_not_passed() -> None:
    qc = EnvQC(POOL, min_attempts=1)
    trajectories, _ = group(SUM, [1.0, 1.0])
    verdicts = {t.id: Verdict(7.0, ID, scale="unbounded") for t in trajectories}
    (finding,) = qc.report(trajectories, verdicts).findings
    assert finding.kind == "zero_signal"
    assert "1 of 1 groups had no signal, 0 of them because every" in finding.evidence


def test_a_restored_qc_goes_on_counting() -> None:
    whole, first, second = EnvQC(POOL), EnvQC(POOL), EnvQC(POOL)
    batches = [group(SUM, [0.0, Outcome.INFRA_FAILURE] * 4), group(REVERSAL, [1.0] * 9)] * 3
    expected = [whole.report(*batch) for batch in batches]
    reports = [first.report(*batch) for batch in batches[:3]]
    second.restore(json.loads(json.dumps(first.state(), sort_keys=True)))
    reports += [second.report(*batch) for batch in batches[3:]]
    assert reports == expected
    assert expected[-1].findings


def test_attempts_at_a_task_of_another_pool_are_refused() -> None:
    with pytest.raises(UsageError, match="which EnvQC does not know"):
        EnvQC({}).report(*group(SUM, [1.0]))
