"""Sums of two numbers: up to 35 at level 0, up to 60 and of two digits each above.

One-digit sums alone would be learned sooner, but there are only 45 of them: too few to hold out a
quarter and still see a difference. With spaces around the signs, a small model starts near a third.
"""

from __future__ import annotations

import random

from practicum.environment.domains.domain import Limits
from practicum.environment.domains.exact_line import ExactLine
from practicum.environment.domains.questions import Question, question_domain


def ask(left: int, right: int) -> Question:
    # 3 + 4 and 4 + 3 are one question in two wordings.
    low, high = sorted((left, right))
    return Question(
        text=f"{left} + {right} =", completion=f" {left + right}", content=f"sum {low} {high}"
    )


def draw_up_to_35(rng: random.Random) -> Question:
    return ask(rng.randint(1, 35), rng.randint(1, 35))


def draw_up_to_60(rng: random.Random) -> Question:
    return ask(rng.randint(1, 60), rng.randint(1, 60))


def draw_two_digits(rng: random.Random) -> Question:
    return ask(rng.randint(10, 99), rng.randint(10, 99))


DOMAIN = question_domain(
    name="addition",
    summary="sums of two numbers up to 35 (larger ones at higher levels)",
    skill="arithmetic",
    levels={0.0: draw_up_to_35, 0.5: draw_up_to_60, 1.0: draw_two_digits},
    shots=(ask(3, 9), ask(8, 17), ask(21, 4)),
    verifier=ExactLine(),
    limits=Limits(max_new_tokens=10, stop=("\n",)),
    baseline=0.05,
)
