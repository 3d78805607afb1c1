"""The layout: what is fed, what predicts what, and how a batch is split."""

from itertools import chain
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.policy.train.batch import Attempt, Batch, assemble, micro_batches
from practicum.types import Segment


def attempt(prompt: list[int], answer: list[int], advantage: float = 1.0) -> Attempt:
    zeros = [0] * len(answer)
    return Attempt((Segment.of(prompt, answer, zeros, zeros),), advantage, 0.5)


def test_the_last_token_is_not_fed_and_every_target_is_read_from_its_predecessor() -> None:
    batch = assemble([[attempt([5, 6], [7, 8])]])
    (work,) = micro_batches(batch, 100)
    assert work.forest.token_ids.tolist() == [5, 6, 7]
    assert work.forest.token_ids[work.nodes[work.rows]].tolist() == [6, 7]
    assert batch.targets[work.columns].tolist() == [7, 8]
    assert batch.num_flat_tokens == 3


def test_answers_that_begin_alike_share_their_rows_of_the_head() -> None:
    batch = assemble([[attempt([1, 2], [3, 4]), attempt([1, 2], [3, 5]), attempt([1, 2], [6])]])
    (work,) = micro_batches(batch, 100)
    assert len(work.forest) == 3  # 1 2 3: what follows is only predicted
    assert len(work.nodes) == 2
    assert len(work.rows) == len(batch) == 5
    assert batch.num_flat_tokens == 3 + 3 + 2


def test_a_batch_of_nothing_has_no_work() -> None:
    for groups in ([], [[]], [[Attempt((), 1.0, 1.0)]], [[attempt([1, 2], [])]]):
        batch = assemble(groups)
        assert len(batch) == 0
        assert batch.targets.dtype == torch.int64
        assert micro_batches(batch, 10) == []


def test_a_first_token_cannot_be_trained_on() -> None:
    with pytest.raises(AssertionError, match="nothing that predicts it"):
        assemble([[attempt([], [1, 2])]])


def test_columns_carry_what_belongs_to_their_token() -> None:
    segment = Segment.of([1], [2, 3], [-0.5, -0.25], [4, 5])
    batch = assemble([[Attempt((segment,), 1.5, 0.125)], [attempt([9], [8], -2.0)]])
    assert batch.targets.tolist() == [2, 3, 8]
    assert batch.behaviour.tolist() == [-0.5, -0.25, 0.0]
    assert batch.versions.tolist() == [4, 5, 0]
    assert batch.advantages.tolist() == [1.5, 1.5, -2.0]
    assert batch.weights.tolist() == [0.125, 0.125, 0.5]


def test_a_group_stays_together_if_it_fits() -> None:
    """Two groups of 13 distinct tokens each: a limit of 20 separates them, 26 does not."""
    groups = [
        [attempt([g] * 10, [g + 1, sample + 10, sample]) for sample in range(2)] for g in (1, 50)
    ]
    batch = assemble(groups)
    assert [len(work.forest) for work in micro_batches(batch, 20)] == [13, 13]
    assert [len(work.forest) for work in micro_batches(batch, 26)] == [26]


def test_a_group_too_large_is_split_by_trajectories_and_a_long_one_goes_alone() -> None:
    group = [attempt([1] * 10, [sample] * 6) for sample in range(2, 5)]
    group.append(attempt([1] * 10, [9] * 31))
    parts = micro_batches(assemble([group]), 20)
    assert [len(work.forest) for work in parts] == [20, 15, 40]


def test_a_limit_holds_also_where_the_forest_declines_to_share() -> None:
    """One shared token does not pay for attention across two long branches: 82, not 81."""
    batch = assemble([[attempt([1], [2 + sample] * 41) for sample in range(2)]])
    assert [len(work.forest) for work in micro_batches(batch, 82)] == [82]
    assert [len(work.forest) for work in micro_batches(batch, 81)] == [41, 41]


ANSWERS = st.lists(st.integers(0, 3), min_size=1, max_size=6)
GROUPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=8),
        st.lists(ANSWERS, min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=5,
)


def grown(groups: list[tuple[list[int], list[list[int]]]]) -> Batch:
    return assemble([[attempt(prompt, answer) for answer in answers] for prompt, answers in groups])


@given(GROUPS, st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_every_target_is_in_exactly_one_micro_batch_within_the_limit(
    groups: list[tuple[list[int], list[list[int]]]], max_tokens: int
) -> None:
    batch = grown(groups)
    parts = micro_batches(batch, max_tokens)
    columns = list(chain.from_iterable(work.columns.tolist() for work in parts))
    assert sorted(columns) == list(range(len(batch)))
    for work in parts:
        assert len(work.forest) <= max_tokens or len(work.forest.paths) == 1
        assert work.nodes.tolist() == sorted(set(work.nodes.tolist()))
        assert len(work.rows) == len(work.columns)


@given(GROUPS, st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_layout_does_not_depend_on_the_order_of_groups(
    groups: list[tuple[list[int], list[list[int]]]], random: Random
) -> None:
    batch = grown(groups)
    shuffled = groups.copy()
    random.shuffle(shuffled)
    assert torch.equal(grown(shuffled).targets, batch.targets)
