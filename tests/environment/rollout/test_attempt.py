"""The one attempt function: whatever happens, an outcome with a name, and never a false reward."""

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest

from fakes import ID, SameText, letter_task, letters_domain
from practicum.environment.domains.reward import MAX_CONCURRENT
from practicum.environment.rollout.attempt import MAX_MESSAGE_CHARACTERS, Attempted, attempt
from practicum.environment.rollout.play import AttemptKey
from practicum.errors import GraderError, InfraError, PolicyDead, UsageError
from practicum.protocols import SandboxPool
from practicum.testing import FakePolicy, FakeSandboxPool
from practicum.types import Outcome, Task, Trajectory
from practicum.verdicts import Verdict

TASK = letter_task("a")


def says(text: str) -> FakePolicy:
    return FakePolicy(lambda prompt, rng: text)


def raises(error: Exception) -> FakePolicy:
    async def before(prompt: str) -> None:
        raise error

    return FakePolicy(lambda prompt, rng: "a", before=before)


async def tried(policy: FakePolicy, verifier: SameText | None = None, sample: int = 0) -> Attempted:
    return await attempt(
        TASK,
        policy,
        FakeSandboxPool(),
        {"letters": letters_domain(verifier)},
        AttemptKey.training(0, sample, seed=0),
        temperature=1.0,
    )


@pytest.mark.parametrize(("text", "score"), [("a", 1.0), ("b", 0.0), ("", 0.0)])
async def test_an_attempt_is_played_and_judged(text: str, score: float) -> None:
    done = await tried(says(text))
    assert done.verdict == Verdict(score, ID)
    assert done.trajectory.outcome is Outcome.SCORED
    assert done.trajectory.usage.verify_s > 0.0


@pytest.mark.parametrize("error", [PolicyDead("the engine is gone"), UsageError("no room")])
async def test_what_no_other_attempt_would_survive_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await tried(raises(error))
    assert raised.value is error


async def test_a_fault_of_the_machinery_is_named_in_its_own_words() -> None:
    done = await tried(raises(InfraError("the disk is gone")))
    assert done.verdict is None
    assert done.trajectory.outcome is Outcome.INFRA_FAILURE
    assert done.trajectory.segments == ()
    assert done.trajectory.failure is not None
    assert done.trajectory.failure.kind == "InfraError"
    assert done.trajectory.failure.message == "the disk is gone"
    assert done.trajectory.failure.where == "play"


async def test_a_bug_of_ours_leaves_the_end_of_its_traceback() -> None:
    def stumble(prompt: str, rng: random.Random) -> str:
        return {}["no such key"]

    done = await tried(FakePolicy(stumble))
    assert done.trajectory.outcome is Outcome.INFRA_FAILURE
    assert done.trajectory.failure is not None
    assert done.trajectory.failure.kind == "KeyError"
    assert "in stumble" in done.trajectory.failure.message
    assert done.trajectory.failure.message.endswith("KeyError: 'no such key'\n")


async def test_a_long_traceback_keeps_its_end() -> None:
    def stumble(prompt: str, rng: random.Random) -> str:
        raise ValueError("x" * 3000 + "the end")

    failure = (await tried(FakePolicy(stumble))).trajectory.failure
    assert failure is not None
    assert len(failure.message) == MAX_MESSAGE_CHARACTERS
    assert failure.message.endswith("xthe end\n")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (GraderError("cannot tell"), Outcome.GRADER_FAILURE),
        (KeyError("a bug"), Outcome.GRADER_FAILURE),
        (InfraError("no sandbox"), Outcome.INFRA_FAILURE),
    ],
)
async def test_a_verifier_that_fails_costs_the_verdict_and_keeps_the_tokens(
    error: Exception, outcome: Outcome
) -> None:
    def judge(task: Task, rollout: Trajectory) -> None:
        raise error

    done = await tried(says("a"), SameText(judge))
    assert done.verdict is None
    assert done.trajectory.outcome is outcome
    assert done.trajectory.num_trainable == 1


@dataclass
class Crowded:
    """A verifier that counts how many of it are at work."""

    id = ID
    at_work: int = 0
    most: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        await self.released.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        self.at_work -= 1
        return Verdict(1.0, ID)


async def test_so_many_attempts_are_judged_at_a_time_whoever_started_them() -> None:
    crowded = Crowded()
    domain = replace(letters_domain(), verifier=crowded)
    running = [
        asyncio.create_task(
            attempt(
                TASK,
                says("a"),
                FakeSandboxPool(),
                {"letters": domain},
                AttemptKey.training(slot, sample, seed=0),
                temperature=1.0,
            )
        )
        for slot in range(8)
        for sample in range(8)
    ]
    for _ in range(20):  # far more turns than an attempt needs to reach its verifier
        await asyncio.sleep(0)
    assert crowded.at_work == MAX_CONCURRENT
    crowded.released.set()
    done = [await work for work in running]
    assert crowded.most == MAX_CONCURRENT
    assert all(one.verdict for one in done)
