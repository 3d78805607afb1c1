"""Which number is the largest? Three two-digit numbers at level 0; then four, then longer ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from practicum.environment.domains.domain import Limits
from practicum.environment.domains.exact_line import ExactLine
from practicum.environment.domains.questions import Question, question_domain


def ask(numbers: Sequence[int]) -> Question:
    listed = ",".join(str(number) for number in numbers)
    # The order of the numbers is wording: all orders of the same numbers belong to one split.
    content = "max " + " ".join(str(number) for number in sorted(numbers))
    return Question(text=f"max({listed})=", completion=str(max(numbers)), content=content)


def draw_three(rng: random.Random) -> Question:
    return ask(rng.sample(range(10, 100), 3))


def draw_four(rng: random.Random) -> Question:
    return ask(rng.sample(range(10, 100), 4))


def draw_four_long(rng: random.Random) -> Question:
    return ask(rng.sample(range(100, 1000), 4))


DOMAIN = question_domain(
    name="max_of_three",
    summary="the largest of three numbers (four, then longer ones, at higher levels)",
    skill="comparison",
    levels={0.0: draw_three, 0.5: draw_four, 1.0: draw_four_long},
    shots=(ask((41, 79, 23)), ask((68, 15, 30)), ask((27, 52, 84))),
    verifier=ExactLine(),
    limits=Limits(max_new_tokens=10, stop=("\n",)),
    baseline=0.05,
)
