"""The templates: three statements of each function agree, and near misses are caught."""

import random
import re
from collections.abc import Iterator

import pytest

from practicum.environment.domains import function_templates as write
from practicum.environment.domains.function_templates import TinyFunction
from practicum.environment.domains.function_tests import HiddenTests
from practicum.environment.domains.sandboxed_call import same
from practicum.environment.domains.tiny_function import LEVELS, ask


def every_template(seed: int) -> Iterator[TinyFunction]:
    for drawers in LEVELS.values():
        for draw in drawers:
            yield draw(random.Random(seed))


def passes(function: TinyFunction, expression: str) -> bool:
    """Run our own expression on the hidden tests (ours, so no sandbox is needed)."""
    tests = HiddenTests.from_json(ask(function).answer)
    run = eval(f"lambda {function.parameter}: {expression}")  # noqa: S307
    return all(same(run(*case.arguments), case.expected) for case in tests.cases)


@pytest.mark.parametrize("seed", range(25))
def test_source_and_implementation_agree(seed: int) -> None:
    for function in every_template(seed):
        assert passes(function, function.body), function.name


@pytest.mark.parametrize("seed", range(10))
def test_no_constant_and_no_copy_of_the_input_passes(seed: int) -> None:
    for function in every_template(seed):
        for expression in ("None", "True", "False", "0", "1", "[]", "''", function.parameter):
            assert not passes(function, expression), (function.name, expression)


@pytest.mark.parametrize("seed", range(10))
def test_a_number_off_by_one_is_caught(seed: int) -> None:
    caught, tried = 0, 0
    for function in every_template(seed):
        for number in set(re.findall(r"\d+", function.body)):
            if " for " in function.body and number in "01":
                continue
            mutant = re.sub(rf"\b{number}\b", str(int(number) + 1), function.body, count=1)
            if mutant != function.body:
                tried += 1
                caught += not passes(function, mutant)
    assert tried > 15
    assert caught >= 0.95 * tried


@pytest.mark.parametrize(
    ("function", "near_miss"),
    [
        (write.clamp(5, 20), "max(5, x)"),
        (write.clamp(5, 20), "min(20, x)"),
        (write.is_between(5, 20), "5 < x <= 20"),
        (write.is_between(5, 20), "5 <= x < 20"),
        (write.count_above(30), "sum(1 for item in items if item >= 30)"),
        (write.keep_below(30), "[item for item in items if item <= 30]"),
        (write.starts_with("q"), "'q' in text"),
        (write.replace("a", "b"), "text.replace('a', 'b', 1)"),
        (write.is_multiple(7), "x == 7"),
        (write.first_items(3), "items[:3] if len(items) > 6 else items"),
        (write.last_item(2), "items[2]"),
        (write.count(9), "len([i for i in items if i >= 9])"),
    ],
)
def test_near_misses_are_caught(function: TinyFunction, near_miss: str) -> None:
    assert not passes(function, near_miss)


def test_the_same_function_always_has_the_same_tests() -> None:
    assert ask(write.add(12)) == ask(write.add(12))
    assert ask(write.add(12)).answer != ask(write.add(13)).answer
