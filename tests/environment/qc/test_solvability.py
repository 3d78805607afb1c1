"""Checks of domains: the built-in ones hold, and each kind of broken one is found out."""

import random
from dataclasses import dataclass, replace

import pytest

from practicum.environment.domains import DOMAINS
from practicum.environment.domains.domain import Domain, Limits
from practicum.environment.domains.exact_line import ExactLine
from practicum.environment.domains.questions import Question, question_domain
from practicum.environment.domains.reward import NoSandboxes
from practicum.environment.qc import check_domain
from practicum.errors import GraderError
from practicum.protocols import SandboxPool
from practicum.types import Task, Trajectory
from practicum.verdicts import Verdict, VerifierId

ID = VerifierId("test", "1", "0")
SUMS = DOMAINS["addition"]


@dataclass(frozen=True)
class Lenient:
    """Passes whatever contains the answer, and an empty answer too."""

    id: VerifierId = ID

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        given = rollout.response.strip()
        return Verdict(float(given in task.answer or task.answer in given), ID)


@dataclass(frozen=True)
class Credulous:
    """Passes any text at all: the answer is never looked at."""

    id: VerifierId = ID

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        return Verdict(float(bool(rollout.response.strip())), ID)


@dataclass(frozen=True)
class Broken:
    id: VerifierId = ID

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        raise GraderError("the answers were lost")


async def kinds(domain: Domain, num_tasks: int = 40) -> set[str]:
    return {finding.kind for finding in await check_domain(domain, NoSandboxes(), num_tasks)}


@pytest.mark.parametrize("name", ["max_of_three", "reversal", "transitive", "addition"])
async def test_the_domains_of_one_line_answers_hold(name: str) -> None:
    assert await check_domain(DOMAINS[name], NoSandboxes(), 400) == ()


@pytest.mark.slow
async def test_the_domain_of_tiny_functions_holds(sandboxes: SandboxPool) -> None:
    assert await check_domain(DOMAINS["tiny_function"], sandboxes, 24) == ()


async def test_a_verifier_that_rejects_the_right_answer_is_found() -> None:
    wrong = replace(SUMS, oracle=lambda task: f"{task.answer}!")
    findings = await check_domain(wrong, NoSandboxes(), 10)
    assert [finding.kind for finding in findings] == ["oracle_fails"] * 10
    assert "expected" in findings[0].evidence
    assert findings[0].task_id


async def test_a_verifier_that_passes_silence_is_found() -> None:
    assert "silence_passes" in await kinds(replace(SUMS, verifier=Lenient()))


async def test_a_verifier_that_does_not_look_at_the_answer_is_found() -> None:
    found = await kinds(replace(SUMS, verifier=Credulous()))
    assert found == {"cross_answer", "constant_answer"}


async def test_a_broken_verifier_is_found_and_not_taken_for_a_strict_one() -> None:
    findings = await check_domain(replace(SUMS, verifier=Broken()), NoSandboxes(), 4)
    assert {finding.kind for finding in findings} == {"oracle_fails", "silence_passes"}
    assert all("grader_error: the answers were lost" in f.evidence for f in findings)


async def test_a_domain_that_a_constant_solves_is_found() -> None:
    def is_small(rng: random.Random) -> Question:
        number = rng.randrange(100_000)
        answer = " yes" if number % 10 else " no"
        return Question(text=f"is {number} round?", completion=answer, content=str(number))

    skewed = question_domain(
        name="skewed",
        summary="",
        skill="",
        levels={0.0: is_small},
        shots=(),
        verifier=ExactLine(),
        limits=Limits(max_new_tokens=4, stop=("\n",)),
        baseline=0.9,
    )
    findings = await check_domain(skewed, NoSandboxes(), 100)
    assert [finding.kind for finding in findings] == ["constant_answer"]
    assert "always answering ' yes'" in findings[0].evidence


async def test_a_baseline_declared_too_low_is_found() -> None:
    assert await kinds(DOMAINS["transitive"], 200) == set()
    assert await kinds(replace(DOMAINS["transitive"], baseline=0.0), 200) == {"constant_answer"}
