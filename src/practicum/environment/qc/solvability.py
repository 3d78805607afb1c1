"""Can a domain be solved, and can it be fooled? Asked of its verifier with scripted answers.

No policy is needed. Run it on a new domain before any training: a verifier that passes silence or
rejects the right answer wastes everything that comes after.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.environment.domains.domain import Domain
from practicum.environment.domains.pool import draw_pool
from practicum.environment.domains.reward import verify
from practicum.environment.domains.scripted import scripted
from practicum.environment.rollout.side_by_side import side_by_side
from practicum.protocols import SandboxPool
from practicum.types import Failure, Task
from practicum.verdicts import Finding, Verdict

SILENCE = ("", "   ", "\n")
NUM_CONSTANTS = 3
"""How many of the most frequent right answers are tried on every task."""
MOST_CONSTANT_SHARE = 0.3
"""An answer that ignores the question and is right more often makes a domain worthless."""
MOST_CROSS_SHARE = 0.2
"""Above the baseline: how often another task's answer may pass."""


@dataclass(frozen=True, slots=True)
class _Judge:
    """Asks the domain's verifier."""

    domain: Domain
    sandboxes: SandboxPool

    async def ask_all(self, asked: Sequence[tuple[Task, str]]) -> list[Verdict | Failure]:
        return await side_by_side(self.ask(task, text) for task, text in asked)

    async def ask(self, task: Task, text: str) -> Verdict | Failure:
        judged, verdict = await verify(
            task,
            scripted(task, text),
            self.sandboxes,
            {self.domain.name: self.domain.verifier},
            timeout_s=self.domain.limits.verify_timeout_s,
        )
        if verdict is None:
            assert judged.failure, "an attempt without a verdict says why"
            return judged.failure
        return verdict


async def check_domain(
    domain: Domain, sandboxes: SandboxPool, num_tasks: int = 64, *, seed: int = 0
) -> tuple[Finding, ...]:
    """Findings about a domain, from `num_tasks` training tasks of all levels. None is good."""
    pool = draw_pool([domain], seed=seed, split="train", size=num_tasks)
    tasks = list(pool.values())
    judge = _Judge(domain, sandboxes)
    return (
        *await _oracle_passes(judge, tasks),
        *await _silence_fails(judge, tasks),
        *await _other_answers_fail(judge, tasks, random.Random(seed)),
        *await _no_constant_wins(judge, tasks),
    )


async def _oracle_passes(judge: _Judge, tasks: Sequence[Task]) -> list[Finding]:
    oracles = [judge.domain.oracle(task) for task in tasks]
    verdicts = await judge.ask_all(list(zip(tasks, oracles)))
    return [
        Finding("oracle_fails", task.domain, f"{oracle!r}: {_describe(verdict)}", task.id)
        for task, oracle, verdict in zip(tasks, oracles, verdicts)
        if isinstance(verdict, Failure) or verdict.reward != 1.0
    ]


async def _silence_fails(judge: _Judge, tasks: Sequence[Task]) -> list[Finding]:
    asked = [(task, text) for task in tasks for text in SILENCE]
    verdicts = await judge.ask_all(asked)
    return [
        Finding("silence_passes", task.domain, f"{text!r}: {_describe(verdict)}", task.id)
        for (task, text), verdict in zip(asked, verdicts)
        if isinstance(verdict, Failure) or verdict.score > 0.0
    ]


async def _other_answers_fail(
    judge: _Judge, tasks: Sequence[Task], rng: random.Random
) -> list[Finding]:
    """Each task gets the oracle of another one that is answered differently."""
    asked: list[tuple[Task, str]] = []
    for task in tasks:
        own = judge.domain.oracle(task)
        others = [text for text in map(judge.domain.oracle, tasks) if text != own]
        asked += [(task, rng.choice(others))] if others else []
    scores = _scores(await judge.ask_all(asked))
    share = sum(scores) / len(scores) if scores else 0.0
    if share <= judge.domain.baseline + MOST_CROSS_SHARE:
        return []
    evidence = f"{share:.0%} of {len(scores)} tasks accept the answer of another task"
    return [Finding("cross_answer", judge.domain.name, evidence)]


async def _no_constant_wins(judge: _Judge, tasks: Sequence[Task]) -> list[Finding]:
    frequent = Counter(map(judge.domain.oracle, tasks)).most_common(NUM_CONSTANTS)
    best_share, best_text = 0.0, ""
    for text, _ in frequent:
        scores = _scores(await judge.ask_all([(task, text) for task in tasks]))
        best_share, best_text = max((best_share, best_text), (sum(scores) / len(tasks), text))
    domain = judge.domain
    # Three standard errors above the declared baseline: more than the luck of this draw.
    spread = (domain.baseline * (1.0 - domain.baseline) / len(tasks)) ** 0.5
    allowed = min(MOST_CONSTANT_SHARE, domain.baseline + 3.0 * spread)
    if best_share <= max(allowed, 1.0 / len(tasks)):
        return []
    evidence = (
        f"always answering {best_text!r} scores {best_share:.3f} on {len(tasks)} tasks; "
        f"the domain declares a baseline of {domain.baseline}"
    )
    return [Finding("constant_answer", domain.name, evidence)]


def _scores(verdicts: Sequence[Verdict | Failure]) -> list[float]:
    return [verdict.score for verdict in verdicts if isinstance(verdict, Verdict)]


def _describe(result: Verdict | Failure) -> str:
    if isinstance(result, Failure):
        return f"{result.kind}: {result.message}"
    return f"reward {result.reward}: {result.evidence}"
