"""The easiest level of each domain has the form that small models were measured to learn."""

import random
import re

import pytest

from practicum.environment.domains import DOMAINS

FORMS = {
    "max_of_three": r"max\(\d\d,\d\d,\d\d\)=",
    "reversal": r"reverse \d \d \d ->",
    "transitive": r"[A-K] is taller than [A-K]\. [A-K] is taller than [A-K]\. The tallest is",
    "addition": r"\d+ \+ \d+ =",
    "tiny_function": r'def \w+\(x\):\n    """Return [^"]+\."""',
}


@pytest.mark.parametrize("name", FORMS)
def test_level_0_asks_in_the_measured_form(name: str) -> None:
    task = DOMAINS[name].draw(random.Random(3), 0.0, "train")
    assert re.fullmatch(FORMS[name], task.metadata["question"])


@pytest.mark.parametrize("name", ["reversal", "transitive", "addition"])
def test_answers_after_a_word_start_with_the_space_that_a_tokenizer_expects(name: str) -> None:
    task = DOMAINS[name].draw(random.Random(3), 0.0, "train")
    assert DOMAINS[name].oracle(task).startswith(" ")


def test_the_tallest_of_a_chain_is_the_one_whom_nobody_tops() -> None:
    domain = DOMAINS["transitive"]
    for level in domain.levels:
        task = domain.draw(random.Random(level), level, "eval")
        told = re.findall(r"(\w) is taller than (\w)", task.metadata["question"])
        (tallest,) = {taller for taller, _ in told} - {shorter for _, shorter in told}
        assert task.answer == f" {tallest}"


def test_sums_and_maxima_and_reversals_are_right() -> None:
    rng = random.Random(0)
    for level in (0.0, 0.5, 1.0):
        task = DOMAINS["addition"].draw(rng, level, "train")
        assert int(task.answer) == sum(map(int, re.findall(r"\d+", task.metadata["question"])))
        task = DOMAINS["max_of_three"].draw(rng, level, "train")
        assert int(task.answer) == max(map(int, re.findall(r"\d+", task.metadata["question"])))
        task = DOMAINS["reversal"].draw(rng, level, "train")
        assert task.answer.split() == re.findall(r"\d", task.metadata["question"])[::-1]
