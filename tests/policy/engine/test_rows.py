"""Where rows go when they fork and end, and how requests are cut into batches."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from practicum.policy.engine.rows import Request, arrange, chunks
from practicum.policy.model.transformer import Transformer
from practicum.protocols import Sampling


@given(st.lists(st.integers(0, 3), max_size=30))
def test_every_continuation_gets_one_place(num_children: list[int]) -> None:
    placed = arrange(num_children)
    expected = [(p, c) for p, count in enumerate(num_children) for c in range(count)]
    assert sorted(placed) == expected


@given(st.lists(st.integers(0, 3), max_size=30))
def test_no_row_moves_that_could_stay(num_children: list[int]) -> None:
    placed = arrange(num_children)
    for row, (parent, child) in enumerate(placed):
        if row < len(num_children) and num_children[row]:
            assert (parent, child) == (row, 0)


def test_children_fill_the_places_of_ended_rows() -> None:
    assert arrange([1, 0, 3]) == [(0, 0), (2, 1), (2, 0), (2, 2)]
    assert arrange([0, 0, 1]) == [(2, 0)]
    assert arrange([0, 0]) == []


def requests(num: int, prompt_length: int = 10, max_new_tokens: int = 5) -> list[Request]:
    return [
        Request((i,) * prompt_length, Sampling(max_new_tokens=max_new_tokens)) for i in range(num)
    ]


def test_batches_are_cut_by_rows(model: Transformer) -> None:
    cut = chunks(requests(10), model.shape, max_rows=4, max_bytes=10**9)
    assert [len(batch) for batch in cut] == [4, 4, 2]


def test_batches_are_cut_by_the_bytes_of_their_keys_and_values(model: Transformer) -> None:
    shape = model.shape
    per_token = 2 * 4 * shape.num_layers * shape.num_kv_heads * shape.head_size
    limit = 3 * (10 + 5) * per_token  # three requests of ten prompt and five new tokens
    assert [len(b) for b in chunks(requests(7), shape, 100, limit)] == [3, 3, 1]
    same_prompt = [dataclasses.replace(r, prompt_ids=(1,) * 10) for r in requests(7)]
    assert [len(b) for b in chunks(same_prompt, shape, 100, limit)] == [7]  # 10 + 7 * 5 = 45


def test_a_request_that_is_too_large_runs_alone(model: Transformer) -> None:
    cut = chunks(requests(3), model.shape, max_rows=10, max_bytes=1)
    assert [len(batch) for batch in cut] == [1, 1, 1]


def test_nothing_is_lost_or_reordered(model: Transformer) -> None:
    asked = requests(23)
    cut = chunks(asked, model.shape, max_rows=5, max_bytes=10**9)
    assert [request for batch in cut for request in batch] == asked
