"""Pools: the same everywhere, without duplicates, and honest about small domains."""

import random

import pytest

from practicum.environment.domains import DOMAINS, TaskPool, draw_pool, get_domain
from practicum.environment.domains.domain import Domain, Limits
from practicum.environment.domains.exact_line import ExactLine
from practicum.environment.domains.questions import Question, question_domain
from practicum.errors import UsageError


def one_question_domain(content: str) -> Domain:
    def only(rng: random.Random) -> Question:
        return Question(text="q:", completion=" a", content=content)

    return question_domain(
        name="single",
        summary="",
        skill="",
        levels={0.0: only},
        shots=(),
        verifier=ExactLine(),
        limits=Limits(max_new_tokens=4, stop=("\n",)),
    )


def test_a_pool_is_a_function_of_its_arguments() -> None:
    domains = [get_domain("addition"), get_domain("tiny_function")]
    first = draw_pool(domains, seed=7, split="train", size=40)
    again = draw_pool(domains, seed=7, split="train", size=40)
    other = draw_pool(domains, seed=8, split="train", size=40)
    assert dict(first) == dict(again)
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_adding_a_domain_leaves_the_tasks_of_the_others_alone() -> None:
    alone = draw_pool([get_domain("reversal")], seed=0, split="train", size=50)
    mixed = draw_pool(DOMAINS.values(), seed=0, split="train", size=50)
    assert alone.by_domain["reversal"] == mixed.by_domain["reversal"]


def test_train_and_eval_pools_share_no_task_and_no_prompt() -> None:
    train = draw_pool(DOMAINS.values(), seed=0, split="train", size=300)
    held_out = draw_pool(DOMAINS.values(), seed=0, split="eval", size=300)
    assert not train.keys() & held_out.keys()
    assert not {t.prompt for t in train.values()} & {t.prompt for t in held_out.values()}


@pytest.mark.parametrize("name", list(DOMAINS))
def test_no_prompt_occurs_twice_in_a_pool(name: str) -> None:
    pool = draw_pool([get_domain(name)], seed=0, split="train", size=300)
    assert len({task.prompt for task in pool.values()}) == len(pool) == 300


def test_levels_get_equal_parts() -> None:
    pool = draw_pool([get_domain("transitive")], seed=0, split="train", size=90)
    difficulties = [task.difficulty for task in pool.values()]
    assert [difficulties.count(level) for level in (0.0, 0.5, 1.0)] == [30, 30, 30]


def test_a_small_level_gives_all_it_has_and_the_others_fill_up() -> None:
    domain = get_domain("addition")
    # 35 * 36 / 2 sums up to 35 + 35, whatever their order; the 3 examples are never asked.
    sizes = {
        split: draw_pool([domain], seed=3, split=split, size=512, levels=(0.0, 0.0)).sizes
        for split in ("train", "eval")
    }
    assert sizes["train"]["addition"] + sizes["eval"]["addition"] == 630 - 3
    assert draw_pool([domain], seed=3, split="train", size=512).sizes == {"addition": 512}


def test_an_empty_range_of_levels_names_the_levels_there_are() -> None:
    with pytest.raises(
        UsageError, match=r"'addition' has no train task .* levels are 0\.0, 0\.5, 1"
    ):
        draw_pool([get_domain("addition")], seed=0, split="train", size=4, levels=(0.6, 0.9))


def test_a_domain_without_a_held_out_question_says_so_instead_of_drawing_for_ever() -> None:
    domain = one_question_domain("reverse 4 7 2")  # which belongs to the training split
    assert draw_pool([domain], seed=0, split="train", size=10).sizes == {"single": 1}
    with pytest.raises(UsageError, match="no eval task"):
        draw_pool([domain], seed=0, split="eval", size=10)


def test_a_pool_is_a_mapping_from_id_to_task() -> None:
    task = get_domain("addition").draw(random.Random(0), 0.0, "train")
    pool = TaskPool([task, task])
    assert list(pool.items()) == [(task.id, task)]
    assert pool.by_domain == {"addition": (task,)}
