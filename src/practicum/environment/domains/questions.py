"""Domains of questions that a base model completes after three worked examples.

The one thing to know: the preamble of examples is the same text for every task of a domain. Engine
and trainer share equal prefixes, so a domain's preamble goes through the network once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from practicum.environment.domains.domain import Domain, Limits, NoSuchTask, split_of
from practicum.protocols import Verifier
from practicum.types import Message, Split, Task

MAX_DRAWS = 20_000
"""A level that shows no question of a split in so many draws is taken to have none."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question, and the text that completes it.

    Example:
        Question(text="reverse 4 7 2 ->", completion=" 2 7 4", content="reverse 4 7 2")
    """

    text: str
    completion: str
    """What a perfect policy says next, leading space included."""
    content: str
    """What is asked, whatever the wording; decides the split."""
    answer: str = ""
    """What the verifier needs, if that is more than the completion."""


def question_domain(
    *,
    name: str,
    summary: str,
    skill: str,
    levels: Mapping[float, Callable[[random.Random], Question]],
    shots: tuple[Question, ...],
    verifier: Verifier,
    limits: Limits,
    oracle: Callable[[Task], str] = lambda task: task.answer,
    needs_sandbox: bool = False,
    baseline: float = 0.0,
) -> Domain:
    """A domain from one generator of questions for each level.

    The worked examples are separated by the first stop string, so that a policy which goes on in
    their style stops.
    """
    shown = frozenset(shot.content for shot in shots)
    assert all(split_of(content) == "train" for content in shown), f"{name}: a shot is held out"
    preamble = "".join(shot.text + shot.completion + limits.stop[0] for shot in shots)

    def draw(rng: random.Random, level: float, split: Split) -> Task:
        if level not in levels:
            raise NoSuchTask(f"domain {name!r} has the levels {_listed(levels)}, not {level}")
        for _ in range(MAX_DRAWS):
            question = levels[level](rng)
            if split_of(question.content) == split and question.content not in shown:
                return Task.create(
                    domain=name,
                    prompt=(Message("text", preamble + question.text),),
                    answer=question.answer or question.completion,
                    difficulty=level,
                    split=split,
                    metadata={"question": question.text, "content": question.content},
                )
        raise NoSuchTask(f"domain {name!r} has no {split} question at level {level}")

    return Domain(
        name=name,
        summary=summary,
        skill=skill,
        levels=tuple(sorted(levels)),
        draw=draw,
        oracle=oracle,
        verifier=verifier,
        limits=limits,
        needs_sandbox=needs_sandbox,
        baseline=baseline,
    )


def _listed(levels: Mapping[float, object]) -> str:
    return ", ".join(str(level) for level in sorted(levels))
