"""The verifier of one-line answers: compares, and never evaluates."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.environment.domains import DOMAINS, compute_reward
from practicum.environment.domains.exact_line import FORMAT_PENALTY
from practicum.environment.domains.scripted import scripted
from practicum.types import StopReason

TASK = DOMAINS["reversal"].draw(random.Random(0), 0.0, "train")
ANSWER = TASK.answer.strip()


@pytest.mark.parametrize(
    "text", [f" {ANSWER}", ANSWER, f"  {ANSWER.replace(' ', '   ')}\t", f" {ANSWER}\nmore"]
)
def test_white_space_and_later_lines_do_not_matter(text: str) -> None:
    assert compute_reward(TASK, scripted(TASK, text)) == 1.0


@pytest.mark.parametrize(
    "text", [f"{ANSWER}.", ANSWER.replace(" ", ""), f"\n{ANSWER}x", f"{ANSWER} {ANSWER}"]
)
def test_anything_else_is_wrong(text: str) -> None:
    assert compute_reward(TASK, scripted(TASK, text)) <= 0.0


@pytest.mark.parametrize("text", ["", "  ", "\n", "\n" + ANSWER])
def test_an_answer_whose_first_line_is_empty_is_wrong(text: str) -> None:
    expected = 0.0 if text.strip() else -FORMAT_PENALTY
    assert compute_reward(TASK, scripted(TASK, text)) == expected


def test_an_answer_that_does_not_stop_pays_a_small_bounded_penalty() -> None:
    right = compute_reward(TASK, scripted(TASK, ANSWER, StopReason.MAX_TOKENS))
    wrong = compute_reward(TASK, scripted(TASK, "7 7 7 7", StopReason.MAX_TOKENS))
    assert (right, wrong) == (1.0 - FORMAT_PENALTY, -FORMAT_PENALTY)


def test_ending_with_the_end_of_text_is_as_good_as_ending_the_line() -> None:
    assert compute_reward(TASK, scripted(TASK, ANSWER, StopReason.EOS)) == 1.0


@given(text=st.text(max_size=300))
def test_any_text_gets_a_bounded_reward_without_an_error(text: str) -> None:
    assert -FORMAT_PENALTY <= compute_reward(TASK, scripted(TASK, text)) <= 1.0


@pytest.mark.parametrize("name", ["max_of_three", "reversal", "transitive", "addition"])
def test_model_text_is_never_evaluated(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    task = DOMAINS[name].draw(random.Random(1), 0.0, "train")
    payloads = [
        f"__import__('pathlib').Path({str(marker)!r}).touch()",
        f"$(touch {marker})",
        f"{{{{ ''.__class__ }}}} `touch {marker}`",
        "9**9**9**9**9",
        "(" * 3000,
        "1" * 100_000,
        f"{task.answer.strip()}+0",
        "nan",
    ]
    for payload in payloads:
        assert compute_reward(task, scripted(task, payload)) <= 0.0
    assert not marker.exists()


def test_a_sum_is_not_accepted_for_its_value() -> None:
    task = DOMAINS["addition"].draw(random.Random(1), 0.0, "train")
    question = task.metadata["question"].removesuffix("=")
    for same_value in (question, f"{task.answer}.0", f"0{task.answer}", f"+{task.answer}"):
        assert compute_reward(task, scripted(task, same_value)) == 0.0
