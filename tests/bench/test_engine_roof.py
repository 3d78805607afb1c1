"""The roof multiplies exactly what an ideal engine would have to."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from practicum.bench.peers.engine_contender import Json
from practicum.bench.roof import CHUNK, Step, packed_bf16, packed_int8, steps


def ask(conversation: int, ids: list[int], num_new: int, first_id: int | None = None) -> Json:
    first = ids[0] if first_id is None else first_id
    return {
        "conversation": conversation,
        "append_ids": ids,
        "max_new_tokens": num_new,
        "first_id": first,
    }


def test_equal_prompts_are_computed_once_and_rows_leave_as_they_end() -> None:
    work = [[ask(0, [5, 6, 7], 2), ask(1, [5, 6, 7], 4), ask(2, [5, 9], 1)]]
    assert steps(work) == [Step(4, 2), Step(2, 2), Step(1, 1), Step(1, 1)]


def test_a_first_token_of_its_own_makes_a_prompt_new() -> None:
    work = [[ask(0, [5, 6, 7], 1, first_id=1), ask(1, [5, 6, 7], 1, first_id=2)]]
    assert steps(work) == [Step(6, 2)]


def test_a_later_turn_computes_the_last_sampled_token_and_what_was_added() -> None:
    work = [[ask(0, [5, 6, 7], 3)], [ask(0, [8, 9], 1, first_id=5)]]
    assert steps(work) == [Step(3, 1), Step(1, 1), Step(1, 1), Step(3, 1)]


def test_a_long_prompt_is_cut_into_chunks_and_its_head_is_read_once() -> None:
    work = [[ask(0, list(range(2 * CHUNK + 3)), 1)]]
    assert steps(work) == [Step(CHUNK, 0), Step(CHUNK, 0), Step(3, 1)]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 5)),
        min_size=1,
        max_size=6,
    )
)
def test_the_head_gives_every_token_but_those_that_a_shared_prompt_gives_at_once(
    asked: list[tuple[list[int], int]],
) -> None:
    work = [[ask(n, ids, budget) for n, (ids, budget) in enumerate(asked)]]
    distinct = len({tuple(ids) for ids, _ in asked})
    drawn = sum(budget for _, budget in asked)
    assert sum(step.head_rows for step in steps(work)) == drawn - len(asked) + distinct


def test_products_have_the_rows_that_were_asked_for() -> None:
    for make in (packed_bf16, packed_int8):
        product = make(48, 32)
        assert product(5).shape == (5, 48)
        assert torch.isfinite(product(CHUNK)).all()
