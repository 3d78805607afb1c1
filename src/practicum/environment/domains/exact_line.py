"""The verifier of answers that are one line: equal to the expected one, up to white space.

The one thing to know: text is only ever compared, never evaluated. `9**9**9` is a wrong answer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from practicum.environment.domains.domain import source_digest
from practicum.protocols import SandboxPool
from practicum.types import StopReason, Task, Trajectory
from practicum.verdicts import Verdict, VerifierId, Violation

FORMAT_PENALTY = 0.1
"""Small beside a right answer: enough to tell a clean wrong answer from a rambling one."""

_RAN_ON = frozenset({StopReason.MAX_TOKENS, StopReason.CONTEXT_END})
_ID = VerifierId(name="exact_line", version="1", digest=source_digest(sys.modules[__name__]))


@dataclass(frozen=True, slots=True)
class ExactLine:
    """Score 1 if the first line of the response is `task.answer`, else 0.

    Example:
        answer " 2 7 4", response "2  7 4 " -> 1.0; response "2 7 4." -> 0.0
    """

    id: VerifierId = _ID

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        expected = _normal(task.answer)
        given = _normal(rollout.response.split("\n", 1)[0])
        return Verdict(
            score=float(given == expected),
            verifier=self.id,
            violations=format_violations(rollout),
            evidence=f"expected {expected!r}, got {given[:200]!r}",
        )


def format_violations(rollout: Trajectory) -> tuple[Violation, ...]:
    """At most one: the policy said nothing, or did not stop by itself."""
    if not rollout.response.strip():
        return (Violation("format", FORMAT_PENALTY, "the answer is empty"),)
    if rollout.stop_reason in _RAN_ON:
        return (Violation("format", FORMAT_PENALTY, f"did not stop: {rollout.stop_reason}"),)
    return ()


def _normal(text: str) -> str:
    return " ".join(text.split())
