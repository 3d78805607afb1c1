"""The forest is exact: whatever is merged, every sequence sees what it would see alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.policy.model.forest import TOKEN_COST_PAIRS, Forest, plant
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer
from practicum.policy.train.recompute import hidden_states

# Few distinct tokens, so that shared beginnings, prefixes of each other and duplicates are common.
sequences = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def model(folder: Path) -> Transformer:
    return load_transformer(folder, torch.float64)


@given(sequences)
def test_paths_spell_the_sequences(rows: list[list[int]]) -> None:
    forest = plant(rows)
    assert [forest.token_ids[torch.from_numpy(path)].tolist() for path in forest.paths] == rows
    for path in forest.paths:
        assert forest.positions[torch.from_numpy(path)].tolist() == list(range(len(path)))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=4))
def test_every_distinct_prefix_of_short_sequences_is_stored_once(rows: list[list[int]]) -> None:
    prefixes = {tuple(row[: end + 1]) for row in rows for end in range(len(row))}
    assert len(plant(rows)) == len(prefixes)


@given(sequences)
def test_a_token_attends_to_its_ancestors_and_itself_only(rows: list[list[int]]) -> None:
    forest = plant(rows)
    ancestors = _ancestors(forest)
    offset = 0
    seen = 0
    for block in forest.blocks:
        num_trees, longest = block.index.shape
        for tree in range(num_trees):
            for query in range(longest):
                place = offset + tree * longest + query
                token = int(block.index[tree, query])
                if int(forest.place[token]) != place:
                    continue  # padding
                seen += 1
                keys = block.index[tree][block.allowed[tree, 0, query]].tolist()
                assert sorted(keys) == sorted(ancestors[token])
        offset += num_trees * longest
    assert seen == len(forest)


@given(sequences, st.randoms(use_true_random=False))
def test_the_layout_does_not_depend_on_the_order(rows: list[list[int]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = plant(rows), plant(shuffled)
    assert torch.equal(one.token_ids, other.token_ids)
    assert torch.equal(one.positions, other.positions)
    assert torch.equal(one.place, other.place)
    assert sorted(p.tolist() for p in one.paths) == sorted(p.tolist() for p in other.paths)


@settings(max_examples=30, deadline=None)
@given(sequences)
def test_hidden_states_equal_those_of_separate_sequences(
    model: Transformer, rows: list[list[int]]
) -> None:
    with torch.no_grad():
        forest = plant(rows)
        together = hidden_states(model, forest)
        for row, path in zip(rows, forest.paths, strict=True):
            alone = hidden_states(model, plant([row]))
            torch.testing.assert_close(together[torch.from_numpy(path)], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("shared", "own", "num"), [(45, 5, 128), (300, 20, 16), (60, 200, 8)])
def test_trees_grow_to_the_size_that_costs_least(shared: int, own: int, num: int) -> None:
    """Compared with all ways to cut the sequences into equal trees."""
    rows = [[0] * shared + [1 + i] * own for i in range(num)]

    def cost(num_trees: int) -> float:
        size = shared + own * num / num_trees
        return num_trees * (size * TOKEN_COST_PAIRS + size**2)

    trees = [block.index.shape for block in plant(rows).blocks]
    ours = sum(n * (longest * TOKEN_COST_PAIRS + longest**2) for n, longest in trees)
    assert ours < 1.15 * min(cost(num_trees) for num_trees in range(1, num + 1))


def test_padding_never_grows_a_tree_by_more_than_half() -> None:
    rows = [[start] * length for start, length in enumerate((1, 2, 3, 5, 8, 13, 21, 34, 100, 99))]
    forest = plant(rows)
    assert sum(block.index.numel() for block in forest.blocks) <= 1.5 * len(forest)
    assert len(forest.blocks) < len(rows)


def test_long_branches_grow_in_trees_of_their_own() -> None:
    """Two shared tokens are not worth dense attention over thousands of pairs."""
    rng = np.random.default_rng(0)
    rows = [[1, 2, *rng.integers(3, 99, 3000).tolist()] for _ in range(2)]
    forest = plant(rows)
    assert len(forest) == 2 * 3002
    assert [forest.token_ids[torch.from_numpy(path)].tolist() for path in forest.paths] == rows


def _ancestors(forest: Forest) -> dict[int, list[int]]:
    ancestors: dict[int, list[int]] = {}
    for path in forest.paths:
        for depth, token in enumerate(path.tolist()):
            ancestors[token] = path[: depth + 1].tolist()
    return ancestors
