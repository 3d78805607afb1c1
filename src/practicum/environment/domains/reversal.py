"""Say the digits backwards: three at level 0, four and five above."""

from __future__ import annotations

import random
from collections.abc import Sequence

from practicum.environment.domains.domain import Limits
from practicum.environment.domains.exact_line import ExactLine
from practicum.environment.domains.questions import Question, question_domain


def ask(digits: Sequence[int]) -> Question:
    forward = " ".join(str(digit) for digit in digits)
    backward = " ".join(str(digit) for digit in reversed(digits))
    return Question(
        text=f"reverse {forward} ->", completion=f" {backward}", content=f"reverse {forward}"
    )


def draw_three(rng: random.Random) -> Question:
    return ask(rng.sample(range(10), 3))


def draw_four(rng: random.Random) -> Question:
    return ask(rng.sample(range(10), 4))


def draw_five(rng: random.Random) -> Question:
    return ask(rng.sample(range(10), 5))


DOMAIN = question_domain(
    name="reversal",
    summary="a row of digits in reverse order",
    skill="sequence manipulation",
    levels={0.0: draw_three, 0.5: draw_four, 1.0: draw_five},
    shots=(ask((4, 7, 2)), ask((9, 1, 6)), ask((3, 8, 5))),
    verifier=ExactLine(),
    limits=Limits(max_new_tokens=16, stop=("\n",)),
    baseline=0.01,
)
