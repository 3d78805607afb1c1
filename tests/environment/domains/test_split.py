"""What is held out stays held out."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.environment.domains import DOMAINS, NoSuchTask, draw_pool, split_of
from practicum.environment.domains.addition import ask as ask_sum
from practicum.environment.domains.domain import Domain
from practicum.environment.domains.max_of_three import ask as ask_max
from practicum.environment.domains.transitive import ask as ask_tallest

EVERY_LEVEL = [(domain, level) for domain in DOMAINS.values() for level in domain.levels]
NAMES = [f"{domain.name}-{level}" for domain, level in EVERY_LEVEL]


@pytest.mark.parametrize(("domain", "level"), EVERY_LEVEL, ids=NAMES)
@given(seed=st.integers(0, 2**32))
def test_a_task_has_the_split_and_level_that_were_asked_for(
    domain: Domain, level: float, seed: int
) -> None:
    for split in ("train", "eval"):
        task = domain.draw(random.Random(seed), level, split)
        assert task.split == split_of(task.metadata["content"]) == split
        assert (task.domain, task.difficulty) == (domain.name, level)
        assert task == domain.draw(random.Random(seed), level, split)


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=list(DOMAINS))
def test_no_content_is_in_both_splits(domain: Domain) -> None:
    contents = {
        split: {
            task.metadata["content"]
            for task in draw_pool([domain], seed=seed, split=split, size=200).values()
        }
        for seed, split in ((0, "train"), (1, "eval"))
    }
    assert not contents["train"] & contents["eval"]


@given(numbers=st.lists(st.integers(10, 99), min_size=3, max_size=3, unique=True))
def test_the_order_of_the_numbers_does_not_move_a_maximum_to_the_other_split(
    numbers: list[int],
) -> None:
    assert len({ask_max(order).content for order in (numbers, numbers[::-1])}) == 1


@given(left=st.integers(1, 99), right=st.integers(1, 99))
def test_a_sum_and_its_mirror_are_one_question(left: int, right: int) -> None:
    assert ask_sum(left, right).content == ask_sum(right, left).content


def test_the_order_of_telling_does_not_move_a_comparison_to_the_other_split() -> None:
    assert ask_tallest("ABC", (0, 1)).content == ask_tallest("ABC", (1, 0)).content
    assert ask_tallest("ABC", (0, 1)).text != ask_tallest("ABC", (1, 0)).text


def test_about_one_content_in_four_is_held_out() -> None:
    held_out = sum(split_of(f"question {index}") == "eval" for index in range(4000))
    assert 850 < held_out < 1150


@pytest.mark.parametrize(("domain", "level"), EVERY_LEVEL, ids=NAMES)
def test_all_tasks_of_a_domain_share_one_preamble_that_does_not_show_the_question(
    domain: Domain, level: float
) -> None:
    preambles = set[str]()
    for seed in range(30):
        task = domain.draw(random.Random(seed), level, "train")
        (message,) = task.prompt
        assert message.role == "text"
        question = task.metadata["question"]
        preamble = message.content.removesuffix(question)
        assert preamble + question == message.content
        assert question not in preamble
        preambles.add(preamble)
    (preamble,) = preambles
    assert preamble.count(domain.limits.stop[0]) == 3


def test_a_level_that_a_domain_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(NoSuchTask, match=r"levels 0\.0, 0\.5, 1\.0, not 0\.3"):
        DOMAINS["addition"].draw(random.Random(0), 0.3, "train")
