"""Attention over shared prompts and own suffixes equals attention over every sequence in full."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.policy.engine.cache import Cache
from practicum.policy.model.forest import plant
from practicum.policy.model.transformer import Shape

SHAPE = Shape(
    vocab_size=9,
    hidden_size=24,
    num_layers=1,
    num_heads=6,
    num_kv_heads=2,
    head_size=4,
    intermediate_size=8,
    context_length=99,
    norm_eps=1e-5,
    tied_head=True,
    inverse_frequencies=(1.0, 0.1),
)
PROMPTS = [[1, 2, 3], [1, 2, 3, 4, 5], [6], [1, 2, 7, 7]]


class Sequence:
    """One row written out in full: keys and values of its prompt and of what followed."""

    def __init__(self, prompt: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.prompt, self.keys, self.values = prompt, keys, values

    def grown(self, key: torch.Tensor, value: torch.Tensor) -> "Sequence":
        keys, values = torch.cat((self.keys, key[None])), torch.cat((self.values, value[None]))
        return Sequence(self.prompt, keys, values)

    def attend(self, query: torch.Tensor) -> torch.Tensor:
        keys, values = (x.transpose(0, 1).repeat_interleave(3, 0) for x in (self.keys, self.values))
        return F.scaled_dot_product_attention(query[:, None], keys, values)[:, 0]


def planted(max_rows: int) -> tuple[Cache, list[Sequence]]:
    forest = plant(PROMPTS)
    key, value = torch.randn(2, len(forest), 2, 4, dtype=torch.float64)
    paths = [torch.from_numpy(path) for path in forest.paths]
    sequences = [Sequence(i, key[path], value[path]) for i, path in enumerate(paths)]
    packed = [(key, value)]
    cache = Cache(SHAPE, forest, packed, max_rows)
    assert not packed, "the cache should leave one copy only"
    return cache, sequences


def step(cache: Cache, rows: list[Sequence], sources: list[int]) -> list[Sequence]:
    """One decoding step for the rows at `sources`, checked against the sequences in full."""
    n = len(sources)
    query = torch.randn(n, 6, 4, dtype=torch.float64)
    key, value = torch.randn(2, n, 2, 4, dtype=torch.float64)
    cache.begin_step(sources, [rows[source].prompt for source in sources])
    attended = cache.attend(0, query, key, value)
    rows = [rows[source].grown(k, v) for source, k, v in zip(sources, key, value, strict=True)]
    expected = torch.stack([row.attend(q) for row, q in zip(rows, query, strict=True)])
    torch.testing.assert_close(attended, expected, rtol=0, atol=1e-12)
    return rows


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=7), min_size=1, max_size=6))
def test_rows_can_fork_move_and_end_at_any_step(plan: list[list[int]]) -> None:
    torch.manual_seed(0)
    cache, rows = planted(max_rows=7)
    for sources in plan:
        rows = step(cache, rows, [source % len(rows) for source in sources])


def test_the_suffix_outgrows_its_first_room() -> None:
    cache, rows = planted(max_rows=4)
    for _ in range(40):
        rows = step(cache, rows, [0, 1, 2, 3])
    assert cache.num_steps == 40


def test_prompts_that_nobody_needs_are_forgotten() -> None:
    cache, rows = planted(max_rows=4)
    rows = step(cache, rows, [0, 1, 2, 3])
    cache.keep_prompts([0, 3])
    assert cache.lengths.tolist() == [3, 4]
    rows = [rows[3], rows[0], rows[3]]
    for row, number in zip(rows, (1, 0, 1), strict=True):
        row.prompt = number
    cache.begin_step([3, 0, 3], [1, 0, 1])
    query = torch.randn(3, 6, 4, dtype=torch.float64)
    key, value = torch.randn(2, 3, 2, 4, dtype=torch.float64)
    expected = [
        row.grown(k, v).attend(q) for row, k, v, q in zip(rows, key, value, query, strict=True)
    ]
    torch.testing.assert_close(cache.attend(0, query, key, value), torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_keep_the_precision_they_come_in(dtype: torch.dtype) -> None:
    forest = plant(PROMPTS)
    key, value = torch.randn(2, len(forest), 2, 4, dtype=dtype)
    cache = Cache(SHAPE, forest, [(key, value)], 4)
    cache.begin_step([0], [0])
    assert cache.attend(0, torch.randn(1, 6, 4, dtype=dtype), key[:1], value[:1]).dtype == dtype
