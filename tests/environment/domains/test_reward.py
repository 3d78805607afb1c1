"""Rewards: every way in which an attempt or a verifier can end, and what becomes of it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from practicum.environment.domains import (
    DOMAINS,
    VERIFIER_REGISTRY,
    Limits,
    RewardHub,
    compute_reward,
    draw_pool,
    get_domain,
    penalty,
    reward,
    verify,
)
from practicum.environment.domains.reward import MAX_CONCURRENT, NoSandboxes
from practicum.environment.domains.scripted import scripted
from practicum.errors import GraderError, InfraError, SandboxError, UsageError
from practicum.protocols import SandboxPool
from practicum.types import Failure, Outcome, Task, Trajectory
from practicum.verdicts import Verdict, VerifierId, Violation

TASK = DOMAINS["addition"].draw(random.Random(0), 0.0, "train")
ID = VerifierId("test", "1", "0")
Body = Callable[[], Awaitable[Verdict]]


@dataclass(frozen=True)
class VerifierOf:
    """A verifier that does what the test says."""

    body: Body
    id: VerifierId = ID

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        return await self.body()


def raising(error: Exception) -> VerifierOf:
    async def body() -> Verdict:
        raise error

    return VerifierOf(body)


def returning(verdict: Verdict) -> VerifierOf:
    async def body() -> Verdict:
        return verdict

    return VerifierOf(body)


async def judge(verifier: VerifierOf, timeout_s: float = 5.0) -> tuple[Trajectory, Verdict | None]:
    verifiers = {TASK.domain: verifier}
    return await verify(TASK, scripted(TASK, "7"), NoSandboxes(), verifiers, timeout_s=timeout_s)


async def test_a_judged_attempt_is_scored_and_its_cost_recorded() -> None:
    judged, verdict = await verify(TASK, scripted(TASK, TASK.answer), NoSandboxes())
    assert verdict is not None
    assert (judged.outcome, judged.failure, verdict.reward) == (Outcome.SCORED, None, 1.0)
    assert judged.usage.verify_s > 0.0


@pytest.mark.parametrize(
    ("error", "outcome", "kind"),
    [
        (GraderError("no tests"), Outcome.GRADER_FAILURE, "grader_error"),
        (InfraError("disk full"), Outcome.INFRA_FAILURE, "infra_error"),
        (SandboxError("no namespaces"), Outcome.INFRA_FAILURE, "sandbox_error"),
        (KeyError("answer"), Outcome.GRADER_FAILURE, "verifier_error"),
        (TimeoutError("its own"), Outcome.GRADER_FAILURE, "verifier_error"),
        (RecursionError(), Outcome.GRADER_FAILURE, "verifier_error"),
    ],
)
async def test_a_verifier_that_fails_leaves_the_attempt_without_a_verdict(
    error: Exception, outcome: Outcome, kind: str
) -> None:
    judged, verdict = await judge(raising(error))
    assert verdict is None
    assert judged.outcome is outcome
    assert judged.failure is not None
    assert judged.failure.kind == kind
    assert judged.failure.where == "verifier test"
    if kind == "verifier_error":
        assert type(error).__name__ in judged.failure.message


async def test_a_verifier_that_hangs_is_to_blame_not_the_policy() -> None:
    judged, verdict = await judge(VerifierOf(asyncio.Event().wait), timeout_s=0.01)  # pyright: ignore
    assert verdict is None
    assert judged.outcome is Outcome.GRADER_FAILURE
    assert judged.failure is not None
    assert judged.failure.kind == "verifier_timeout"
    assert judged.usage.verify_s >= 0.01


async def test_an_unscorable_verdict_is_a_failure_of_the_grader() -> None:
    judged, verdict = await judge(returning(Verdict(0.0, ID, unscorable="two right answers")))
    assert verdict is None
    assert judged.failure == Failure("unscorable", "two right answers", "verifier test")


async def test_a_score_off_its_scale_is_a_failure_of_the_grader() -> None:
    async def body() -> Verdict:
        return Verdict(1.5, ID)

    judged, verdict = await judge(VerifierOf(body))
    assert verdict is None
    assert judged.outcome is Outcome.GRADER_FAILURE


async def test_cancelling_the_caller_is_not_taken_for_a_failure() -> None:
    started = asyncio.Event()

    async def body() -> Verdict:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    judging = asyncio.create_task(judge(VerifierOf(body)))
    await started.wait()
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging


async def test_a_failure_of_the_policy_scores_0_without_asking_the_verifier() -> None:
    failed = replace(
        scripted(TASK, TASK.answer),
        outcome=Outcome.MODEL_FAILURE,
        failure=Failure("context_overflow", "prompt and answer exceed 2048 tokens"),
    )
    verifiers = {TASK.domain: raising(AssertionError("asked"))}
    judged, verdict = await verify(TASK, failed, NoSandboxes(), verifiers)
    assert judged == failed
    assert verdict is not None
    assert verdict.reward == 0.0
    assert "context_overflow" in verdict.evidence


@pytest.mark.parametrize(
    "outcome", [Outcome.INFRA_FAILURE, Outcome.GRADER_FAILURE, Outcome.CANCELLED]
)
async def test_an_attempt_that_does_not_count_stays_as_it_is(outcome: Outcome) -> None:
    lost = replace(scripted(TASK, TASK.answer), outcome=outcome, failure=Failure("x", "y"))
    assert await verify(TASK, lost, NoSandboxes()) == (lost, None)


async def test_a_domain_without_a_verifier_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="'addition', which has no verifier"):
        await verify(TASK, scripted(TASK, "7"), NoSandboxes(), {})


def test_the_reward_is_score_minus_bounded_penalties() -> None:
    violations = (Violation("format", 0.1), Violation("tampering", 0.5))
    assert penalty(violations) == 0.6
    assert penalty(violations * 3) == 1.0
    assert compute_reward(TASK, scripted(TASK, TASK.answer)) == 1.0
    assert compute_reward(TASK, scripted(TASK, "")) == -0.1


def test_an_attempt_without_a_verdict_raises_instead_of_paying_0() -> None:
    lost = replace(
        scripted(TASK, "7"), outcome=Outcome.INFRA_FAILURE, failure=Failure("engine", "gone")
    )
    with pytest.raises(InfraError, match=r"has no reward .*engine: gone"):
        compute_reward(TASK, lost)
    broken = replace(DOMAINS["tiny_function"].draw(random.Random(0), 0.0, "train"), answer="{}")
    with pytest.raises(GraderError, match="hidden tests of the task cannot be read"):
        compute_reward(broken, scripted(broken, "return 1"), NoSandboxes())


def test_a_domain_that_runs_code_asks_for_sandboxes_beforehand() -> None:
    task = DOMAINS["tiny_function"].draw(random.Random(0), 0.0, "train")
    with pytest.raises(UsageError, match="pass `sandboxes="):
        compute_reward(task, scripted(task, "return 1"))
    with pytest.raises(UsageError, match="pass `sandboxes="):
        RewardHub({task.id: task})


def test_the_hub_scores_by_id_and_leaves_out_what_does_not_count() -> None:
    pool = draw_pool([get_domain("addition")], seed=0, split="train", size=20)
    attempts = [scripted(task, task.answer, sample=i) for i, task in enumerate(pool.values())]
    attempts[3] = replace(attempts[3], outcome=Outcome.CANCELLED)
    rewards = RewardHub(pool).score(attempts, verifiers=VERIFIER_REGISTRY)
    assert rewards.keys() == {t.id for t in attempts} - {attempts[3].id}
    assert {verdict.reward for verdict in rewards.values()} == {1.0}


def test_the_hub_runs_only_so_many_verifiers_at_a_time() -> None:
    running, most = 0, 0

    async def body() -> Verdict:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Verdict(1.0, ID)

    pool = draw_pool([get_domain("addition")], seed=0, split="train", size=40)
    attempts = [scripted(task, "7") for task in pool.values()]
    rewards = RewardHub(pool).score(attempts, {"addition": VerifierOf(body)})
    assert len(rewards) == 40
    assert most == MAX_CONCURRENT


async def test_waiting_for_a_place_is_not_the_verifiers_time() -> None:
    released, at_work = asyncio.Event(), 0

    async def hold() -> Verdict:
        nonlocal at_work
        at_work += 1
        await released.wait()
        return Verdict(1.0, ID)

    holding = [asyncio.create_task(judge(VerifierOf(hold))) for _ in range(MAX_CONCURRENT)]
    while at_work < MAX_CONCURRENT:
        await asyncio.sleep(0)
    # A limit of 0 is over at the first turn of the event loop that the verifier lets pass.
    waiting = asyncio.create_task(judge(returning(Verdict(1.0, ID)), timeout_s=0.0))
    wait_s = 0.05
    assert await asyncio.wait([waiting], timeout=wait_s) == (set(), {waiting})
    released.set()
    judged, verdict = await waiting
    assert verdict is not None
    assert judged.usage.verify_s < wait_s
    assert all(verdict for _, verdict in [await work for work in holding])


def test_a_finished_event_loop_leaves_no_gate_behind() -> None:
    pool = draw_pool([get_domain("addition")], seed=0, split="train", size=2 * MAX_CONCURRENT)
    attempts = [scripted(task, "7") for task in pool.values()]

    async def body() -> Verdict:
        await asyncio.sleep(0)  # so that some have to wait, which ties the gate to its loop
        return Verdict(1.0, ID)

    for _ in range(3):
        assert len(RewardHub(pool).score(attempts, {"addition": VerifierOf(body)})) == len(pool)
    assert len(reward._gates) == 1


def test_the_hub_keeps_to_the_limit_of_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = replace(DOMAINS["addition"], limits=Limits(4, (), verify_timeout_s=0.01))
    monkeypatch.setattr(reward, "DOMAINS", {"addition": hasty})
    hanging = {"addition": VerifierOf(asyncio.Event().wait)}  # pyright: ignore
    hub = RewardHub({TASK.id: TASK})
    ((judged, verdict),) = asyncio.run(hub.judge([scripted(TASK, "7")], hanging))
    assert verdict is None
    assert judged.failure == Failure(
        "verifier_timeout", "no verdict within 0.01 s", "verifier test"
    )


def test_a_reward_is_only_computed_for_the_task_that_was_attempted() -> None:
    other = DOMAINS["reversal"].draw(random.Random(0), 0.0, "train")
    with pytest.raises(UsageError, match="which is not among"):
        compute_reward(other, scripted(TASK, TASK.answer))


def test_an_attempt_at_an_unknown_task_is_named_before_anything_runs() -> None:
    hub = RewardHub({})
    with pytest.raises(UsageError, match=f"{TASK.id}, which is not among"):
        hub.score([scripted(TASK, "7")])


async def test_the_blocking_forms_point_to_the_async_ones_inside_a_loop() -> None:
    with pytest.raises(UsageError, match=r"await `RewardHub\.judge"):
        RewardHub({TASK.id: TASK}).score([scripted(TASK, "7")])
    with pytest.raises(UsageError, match=r"await `RewardHub\.judge"):
        compute_reward(TASK, scripted(TASK, "7"))
    ((judged, verdict),) = await RewardHub({TASK.id: TASK}).judge([scripted(TASK, TASK.answer)])
    assert verdict is not None
    assert (judged.outcome, verdict.reward) == (Outcome.SCORED, 1.0)
