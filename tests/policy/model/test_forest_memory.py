"""How a forest attends: forward the bits of the engine's pages, backward the exact gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from practicum.policy.model.dense import DenseMemory
from practicum.policy.model.family import shape_from_config
from practicum.policy.model.forest import Forest, plant
from practicum.policy.model.forest_memory import ForestMemory, dense_attend
from practicum.policy.model.paged import Reading, attend, new_pages, put
from practicum.policy.model.shape import AttentionRule, Shape
from practicum.policy.model.tiny import tiny_config

from .needs import EXTRA, HALF_ULP, needs_kernels

bf16 = torch.bfloat16
H, K, C = 6, 2, 32
SHAPE: Shape = shape_from_config(tiny_config(hidden_size=H * C))
RULES = [
    AttentionRule(0.2),
    AttentionRule(0.5, softcap=4.0),
    AttentionRule(0.2, window=9),
    AttentionRule(0.2, window=20, sinks=3, softcap=10.0),
]


def branching(*shape: tuple[int, int]) -> list[list[int]]:
    """Sequences of (tokens shared with the one before, tokens of its own)."""
    sequences: list[list[int]] = [[]]
    for number, (shared, own) in enumerate(shape):
        sequences.append(sequences[-1][:shared] + [1000 * number + i for i in range(own)])
    return sequences[1:]


GROUP = branching((0, 150), (150, 1), (70, 100), (64, 40), (33, 3), (0, 5))


def tensors(forest: Forest, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(len(forest), heads, C, generator=generator, dtype=torch.float64).to(dtype)
        for heads in (H, K, K)
    )  # pyright: ignore[reportReturnType]


def one_by_one(
    forest: Forest, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule
) -> list[Tensor]:
    """What each sequence reads in pages of its own, token after token as the engine decodes."""
    found: list[Tensor] = []
    for path in map(torch.from_numpy, forest.paths):
        length = len(path)
        table = list(range(-(-length // 32)))
        pages = new_pages(SHAPE, len(table), query.dtype)
        put(pages, key[path], value[path], Reading.of([(table, 0, length)]).slots())
        rows = [
            attend(pages, query[path[i : i + 1]], Reading.of([(table, i, 1)]), rule)
            for i in range(length)
        ]
        found.append(torch.cat(rows))
    return found


@needs_kernels
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_forest_reads_the_bits_that_decoding_reads(rule: AttentionRule) -> None:
    forest = plant(GROUP)
    inputs = tensors(forest, bf16)
    found = ForestMemory(forest, SHAPE).attend(0, *inputs, rule)
    for path, alone in zip(forest.paths, one_by_one(forest, *inputs, rule)):
        assert torch.equal(found[path], alone)


@pytest.mark.parametrize("rule", [RULES[0], RULES[1], RULES[2]], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_values_and_gradients_are_those_of_whole_sequences(
    dtype: torch.dtype, tolerance: float, rule: AttentionRule
) -> None:
    forest = plant(GROUP)
    query, key, value = (x.requires_grad_() for x in tensors(forest, dtype))
    found = ForestMemory(forest, SHAPE).attend(0, query, key, value, rule)
    coefficients = torch.randn(found.shape, generator=torch.Generator().manual_seed(5))
    outputs: list[Tensor] = []
    for path in map(torch.from_numpy, forest.paths):
        alone = DenseMemory().attend(0, query[path], key[path], value[path], rule)
        torch.testing.assert_close(found[path], alone, rtol=tolerance, atol=tolerance)
        outputs.append((alone * coefficients[path]).sum())
    expected = torch.autograd.grad(sum(outputs, torch.zeros(())), (query, key, value))
    parts = [(found[p] * coefficients[p]).sum() for p in map(torch.from_numpy, forest.paths)]
    weighted = sum(parts, torch.zeros(()))
    gradients = torch.autograd.grad(weighted, (query, key, value))
    for gradient, truth in zip(gradients, expected):
        scale = float(truth.abs().max())
        torch.testing.assert_close(gradient, truth, rtol=tolerance, atol=10 * tolerance * scale)


@needs_kernels
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_gradient_is_that_of_the_dense_form(rule: AttentionRule) -> None:
    forest = plant(GROUP)
    inputs = [x.requires_grad_() for x in tensors(forest, bf16)]
    found = ForestMemory(forest, SHAPE).attend(0, *inputs, rule)
    dense = dense_attend(forest, *inputs, rule)
    size = dense_attend(forest, inputs[0], inputs[1], inputs[2].abs(), rule)
    bound = 2 * HALF_ULP * EXTRA * (size.double() + dense.double().abs())
    assert ((found.double() - dense.double()).abs() <= bound + 1e-5).all()
    coefficients = torch.randn(found.shape, generator=torch.Generator().manual_seed(5)).to(bf16)
    for one, other in zip(
        torch.autograd.grad((found * coefficients).sum(), inputs),
        torch.autograd.grad((dense * coefficients).sum(), inputs),
    ):
        assert one.dtype == bf16
        assert torch.equal(one, other)


@given(
    shape=st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60)), min_size=1, max_size=6),
    rule=st.sampled_from(RULES),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_forests_of_any_form_read_what_whole_sequences_do(
    shape: list[tuple[int, int]], rule: AttentionRule
) -> None:
    forest = plant(branching(*shape))
    inputs = tensors(forest, torch.float64)
    found = ForestMemory(forest, SHAPE).attend(0, *inputs, rule)
    expected = dense_attend(forest, *inputs, rule)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    if rule.sinks == 0:
        for path in forest.paths:
            alone = DenseMemory().attend(0, *(x[path] for x in inputs), rule)
            torch.testing.assert_close(found[path], alone, rtol=1e-12, atol=1e-12)
