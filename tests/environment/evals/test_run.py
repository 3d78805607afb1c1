"""Held-out evaluation: greedy, once per task, and nothing unscored is booked as wrong."""

from collections.abc import Sequence

import pytest

from fakes import SameText, letter_task, letters_domain
from practicum.environment.evals.run import evaluate
from practicum.errors import GraderError, PolicyDead
from practicum.observe.evals import EvalResult
from practicum.sampling import Completion, Sampling
from practicum.testing import FakePolicy, FakeSandboxPool
from practicum.types import Task, Trajectory, WeightVersion

TASKS = [letter_task(letter) for letter in "abcdefgh"]


class Recording(FakePolicy):
    """Writes down with which settings it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, rng: rng.choice("abcdefgh"))
        self.asked: list[Sampling] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        self.asked.append(sampling)
        return await super().generate(prompt_ids, sampling)


async def evaluated(
    policy: FakePolicy, tasks: Sequence[Task] = TASKS, verifier: SameText | None = None
) -> EvalResult:
    domains = {"letters": letters_domain(verifier)}
    return await evaluate(policy, tasks, domains, FakeSandboxPool(), step=3, seed=0)


async def test_every_task_is_attempted_once_at_temperature_0_with_a_stream_of_its_own() -> None:
    policy = Recording()
    result = await evaluated(policy)
    assert result.tasks.keys() == {task.id for task in TASKS}
    assert [sampling.temperature for sampling in policy.asked] == [0.0] * len(TASKS)
    assert len({sampling.seed for sampling in policy.asked}) == len(TASKS)


async def test_the_order_of_the_tasks_does_not_matter() -> None:
    forward = await evaluated(Recording())
    assert await evaluated(Recording(), TASKS[::-1]) == forward
    assert len({task.response for task in forward.tasks.values()}) > 2


async def test_attempts_bear_ids_of_their_own_that_no_training_attempt_has() -> None:
    judged: list[Trajectory] = []
    verifier = SameText(lambda task, rollout: judged.append(rollout))
    await evaluated(Recording(), verifier=verifier)
    assert {t.id for t in judged} == {f"eval-000003-{task.id}-00" for task in TASKS}
    assert len(judged) == len(TASKS)


async def test_a_task_that_could_not_be_scored_has_no_score() -> None:
    def judge(task: Task, rollout: Trajectory) -> None:
        if task.answer == "c":
            raise GraderError("cannot tell")

    result = await evaluated(FakePolicy(lambda prompt, rng: prompt[-1]), verifier=SameText(judge))
    unscored = result.tasks[letter_task("c").id]
    assert (unscored.score, unscored.outcome, unscored.response) == (None, "grader_failure", "c")
    assert [t.score for t in result.tasks.values() if t is not unscored] == [1.0] * 7


async def test_the_result_names_the_policy_and_how_far_it_was_trained() -> None:
    policy = FakePolicy(lambda prompt, rng: "?")
    policy.publish(WeightVersion(2))
    result = await evaluated(policy)
    assert (result.step, result.policy, result.version) == (3, "fake", 2)
    assert {(task.domain, task.score) for task in result.tasks.values()} == {("letters", 0.0)}


async def test_a_dead_policy_ends_the_evaluation_by_name() -> None:
    async def dies(prompt: str) -> None:
        raise PolicyDead("the engine is gone")

    with pytest.raises(PolicyDead, match="is gone"):
        await evaluated(FakePolicy(lambda prompt, rng: "a", before=dies))
