"""Who is the tallest? Follows from a chain of comparisons: three people at level 0, more above."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from practicum.environment.domains.domain import Limits
from practicum.environment.domains.exact_line import ExactLine
from practicum.environment.domains.questions import Question, question_domain

NAMES = "ABCDEFGHJK"


def ask(tallest_first: Sequence[str], order: Sequence[int]) -> Question:
    """`order` is the order in which the comparisons are told."""
    told = [f"{taller} is taller than {shorter}." for taller, shorter in pairwise(tallest_first)]
    return Question(
        text=" ".join(told[index] for index in order) + " The tallest is",
        completion=f" {tallest_first[0]}",
        # The order of telling is wording, so it does not enter the content.
        content="tallest first: " + " ".join(tallest_first),
    )


def _draw(rng: random.Random, num_people: int) -> Question:
    people = rng.sample(NAMES, num_people)
    return ask(people, rng.sample(range(num_people - 1), num_people - 1))


def draw_three(rng: random.Random) -> Question:
    return _draw(rng, 3)


def draw_four(rng: random.Random) -> Question:
    return _draw(rng, 4)


def draw_five(rng: random.Random) -> Question:
    return _draw(rng, 5)


DOMAIN = question_domain(
    name="transitive",
    summary="the tallest of a few people, from pairwise comparisons told in any order",
    skill="transitive logic",
    levels={0.0: draw_three, 0.5: draw_four, 1.0: draw_five},
    shots=(ask("DHB", (0, 1)), ask("KCH", (1, 0)), ask("FEJ", (0, 1))),
    verifier=ExactLine(),
    limits=Limits(max_new_tokens=10, stop=("\n",)),
    baseline=0.13,
)
