"""The verifier of functions that the policy writes: hidden tests, called in a sandbox, judged here.

The one thing to know: all tests or nothing. Partial credit would pay `return True` half a point for
every yes-or-no function; the share of tests that passed is reported as a part, not as the score.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from practicum.environment.domains import exact_line, sandboxed_call
from practicum.environment.domains.domain import source_digest
from practicum.environment.domains.exact_line import format_violations
from practicum.environment.domains.sandboxed_call import Calls, Raised, call_function, same
from practicum.errors import GraderError
from practicum.protocols import SandboxPool
from practicum.types import Task, Trajectory
from practicum.verdicts import Verdict, VerifierId, Violation

TAMPERING_PENALTY = 0.5

_ID = VerifierId(
    name="function_tests",
    version="1",
    digest=source_digest(sys.modules[__name__], sandboxed_call, sandboxed_call.HARNESS, exact_line),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One hidden test.

    Example:
        Case(arguments=[3], expected=10)
    """

    arguments: list[Any]
    expected: Any


@dataclass(frozen=True, slots=True)
class HiddenTests:
    """What `task.answer` holds, as JSON. Never in a prompt; only arguments reach a sandbox."""

    entry: str
    """Name of the function to call."""
    header: str
    """The source that the policy was asked to continue."""
    solution: str
    """A continuation that passes."""
    cases: tuple[Case, ...]

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> HiddenTests:
        """Raises GraderError for a malformed task: an empty list of tests passes nobody."""
        try:
            tests = msgspec.json.decode(text, type=HiddenTests)
        except msgspec.MsgspecError as error:
            raise GraderError(f"the hidden tests of the task cannot be read: {error}") from None
        if not tests.cases:
            raise GraderError(f"the task for {tests.entry!r} has no tests, so nothing can pass it")
        return tests


@dataclass(frozen=True, slots=True)
class FunctionTests:
    """Score 1 if the completed function returns the expected value in every hidden test, else 0."""

    id: VerifierId = _ID

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        tests = HiddenTests.from_json(task.answer)
        violations = format_violations(rollout)
        if not rollout.response.strip():
            return Verdict(0.0, self.id, violations=violations, evidence="the answer is empty")
        calls = await call_function(
            sandboxes,
            tests.header + rollout.response + "\n",
            tests.entry,
            [case.arguments for case in tests.cases],
        )
        passed, first_miss = _compare(calls, tests.cases)
        if calls.forged:
            violations += (Violation("tampering", TAMPERING_PENALTY, calls.problem),)
        return Verdict(
            score=float(passed == len(tests.cases)),
            verifier=self.id,
            violations=violations,
            parts={"tests": passed / len(tests.cases)},
            evidence=calls.problem or first_miss or f"all {passed} tests passed",
        )


def _compare(calls: Calls, cases: tuple[Case, ...]) -> tuple[int, str]:
    """Number of tests passed, and what went wrong first."""
    passed, first_miss = 0, ""
    for case, outcome in zip(cases, calls.outcomes):
        if not isinstance(outcome, Raised) and same(outcome.value, case.expected):
            passed += 1
            continue
        got = outcome.error if isinstance(outcome, Raised) else repr(outcome.value)
        first_miss = (
            first_miss or f"for {case.arguments!r} expected {case.expected!r}, got {got[:200]}"
        )
    return passed, first_miss
