"""Who enters the baseline and the denominators."""

import pytest

from practicum.errors import InfraError
from practicum.policy.train.algorithms import ALGORITHMS
from practicum.policy.train.groups import Scored, score
from practicum.types import Outcome, Segment, Trajectory
from practicum.verdicts import Verdict

from .models import VERIFIER, random_step, trajectory, verdict


def answer(*logprobs: float) -> Segment:
    return Segment.of([1, 2], range(len(logprobs)), logprobs, [0] * len(logprobs))


def scored(
    trajectories: list[Trajectory], verdicts: dict[str, Verdict], algorithm: str = "grpo"
) -> Scored:
    return score(trajectories, verdicts, ALGORITHMS[algorithm], max_response_tokens=10)


def test_an_attempt_without_a_verdict_counts_nowhere() -> None:
    trajectories, verdicts = random_step(0, [[1.0, 0.0, 0.0]])
    expected = scored(trajectories, verdicts)
    lost = trajectory(0, 7, [answer(-1, -1)], Outcome.INFRA_FAILURE)
    assert scored([*trajectories, lost], verdicts) == expected
    assert expected.totals.num_trajectories == 3


def test_an_unscorable_verdict_is_left_out_and_never_a_zero() -> None:
    trajectories, verdicts = random_step(0, [[1.0, 0.0, 1.0]])
    broken = Verdict(score=0.0, verifier=VERIFIER, unscorable="the grader broke")
    found = scored(trajectories, verdicts | {"0-1": broken})
    assert found.groups == ()
    assert found.num_without_signal == 1
    assert found.totals.num_trajectories == 2


def test_an_attempt_that_failed_before_it_spoke_lowers_the_baseline_and_counts() -> None:
    silent = trajectory(0, 2, [], Outcome.MODEL_FAILURE)
    spoke = [trajectory(0, sample, [answer(-1, -2)]) for sample in range(2)]
    verdicts = {t.id: verdict(reward) for t, reward in zip([*spoke, silent], [1.0, 1.0, 0.0])}
    (group,) = scored([*spoke, silent], verdicts, "dr_grpo").groups
    assert [attempt.advantage for attempt in group] == pytest.approx([1 / 3, 1 / 3])
    assert [attempt.weight for attempt in group] == [1 / (3 * 10)] * 2


def test_groups_are_formed_by_id_whatever_the_order() -> None:
    trajectories, verdicts = random_step(1, [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    mixed = trajectories[::2] + trajectories[1::2]
    found = scored(mixed, verdicts)
    assert found == scored(trajectories, verdicts)
    assert len(found.groups) == 2
    assert found.num_without_signal == 1
    assert found.totals.num_trajectories == 6


def test_the_reward_is_what_is_left_after_penalties() -> None:
    """Violations, not only scores, separate attempts."""
    from practicum.verdicts import Violation

    trajectories, verdicts = random_step(2, [[1.0, 1.0]])
    punished = Verdict(1.0, VERIFIER, violations=(Violation("tampering", 1.0),))
    (group,) = scored(trajectories, verdicts | {"0-0": punished}, "dr_grpo").groups
    assert [attempt.advantage for attempt in group] == [-0.5, 0.5]


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_a_log_prob_that_is_not_finite_is_refused_by_name(bad: float) -> None:
    trajectories = [trajectory(0, 0, [answer(-1, bad)]), trajectory(0, 1, [answer(-1)])]
    verdicts = {"0-0": verdict(0.0), "0-1": verdict(1.0)}
    with pytest.raises(InfraError, match="token 3 of segment 0 of trajectory '0-0'"):
        scored(trajectories, verdicts)
