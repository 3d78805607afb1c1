"""Write the body of a tiny Python function from its name and docstring; hidden tests judge it.

One expression over a number at level 0, over a list or a text at 0.5, a condition or a loop at 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from practicum.environment.domains import function_templates as write
from practicum.environment.domains.domain import Limits
from practicum.environment.domains.function_templates import LETTERS, TinyFunction
from practicum.environment.domains.function_tests import Case, FunctionTests, HiddenTests
from practicum.environment.domains.questions import Question, question_domain

Draw = Callable[[random.Random], TinyFunction]

LEVELS: dict[float, tuple[Draw, ...]] = {
    0.0: (
        lambda rng: write.add(rng.randint(2, 99)),
        lambda rng: write.subtract(rng.randint(2, 99)),
        lambda rng: write.multiply(rng.randint(2, 99)),
        lambda rng: write.remainder(rng.randint(3, 60)),
    ),
    0.5: (
        lambda rng: write.item_at(rng.randint(0, 5)),
        lambda rng: write.last_item(rng.randint(1, 6)),
        lambda rng: write.first_items(rng.randint(2, 5)),
        lambda rng: write.append(rng.randint(2, 99)),
        lambda rng: write.count(rng.randint(2, 99)),
        lambda rng: write.repeat(rng.randint(2, 9)),
        lambda rng: write.replace(*rng.sample(LETTERS, 2)),
        lambda rng: write.starts_with(rng.choice(LETTERS)),
    ),
    1.0: (
        lambda rng: write.is_multiple(rng.randint(2, 60)),
        lambda rng: write.clamp(low := rng.randint(0, 40), low + rng.randint(5, 40)),
        lambda rng: write.is_between(low := rng.randint(0, 40), low + rng.randint(5, 40)),
        lambda rng: write.count_above(rng.randint(2, 99)),
        lambda rng: write.keep_below(rng.randint(2, 99)),
        lambda rng: write.count_multiples(rng.randint(2, 12)),
        lambda rng: write.add_to_each(rng.randint(2, 99)),
    ),
}


def ask(function: TinyFunction) -> Question:
    """The question, with hidden tests that no constant passes; always the same for a function."""
    # The prompt ends with the docstring, not with a line break or an indentation: what follows is
    # then split into tokens as in ordinary code.
    header = f'def {function.name}({function.parameter}):\n    """{function.doc}"""'
    body = f"\n    return {function.body}"
    tests = HiddenTests(function.name, header, body, _draw_cases(function))
    return Question(
        text=header, completion=body, content=f"def {function.name}", answer=tests.to_json()
    )


def _draw_cases(function: TinyFunction) -> tuple[Case, ...]:
    rng = random.Random(function.name)
    while True:
        cases = tuple(Case([value], function.compute(value)) for value in function.draw(rng))
        if len({repr(case.expected) for case in cases}) > 1:
            return cases


def _level(drawers: tuple[Draw, ...]) -> Callable[[random.Random], Question]:
    return lambda rng: ask(rng.choice(drawers)(rng))


SHOTS = (ask(write.add(7)), ask(write.count(5)), ask(write.keep_below(8)))

DOMAIN = question_domain(
    name="tiny_function",
    summary="the body of a tiny Python function, judged by hidden tests in a sandbox",
    skill="coding",
    levels={level: _level(drawers) for level, drawers in LEVELS.items()},
    shots=SHOTS,
    verifier=FunctionTests(),
    limits=Limits(max_new_tokens=48, stop=("\n\n", "\ndef"), verify_timeout_s=30.0),
    oracle=lambda task: HiddenTests.from_json(task.answer).solution,
    needs_sandbox=True,
    baseline=0.02,
)
