"""Attention over pages: right, and the same bits in any company, chunk and place."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from practicum.policy.model.family import shape_from_config
from practicum.policy.model.page_layout import to_interleaved, to_natural
from practicum.policy.model.paged import PAGE, Reading, attend, new_pages, plain_attend, put
from practicum.policy.model.shape import AttentionRule
from practicum.policy.model.tiny import tiny_config

from .needs import EXTRA, HALF_ULP, needs_kernels, threads, without_kernels
from .paging import Paged, Sizes, exact, fill

bf16 = torch.bfloat16
LENGTHS = (1, 31, 32, 33, 127, 128, 129, 300, 5)
SIZES = [Sizes(9, 3, 64), Sizes(4, 4, 32), Sizes(8, 1, 128), Sizes(32, 2, 64), Sizes(2, 1, 256)]
RULES = [
    AttentionRule(0.125),
    AttentionRule(0.5, softcap=5.0),
    AttentionRule(0.2, window=1),
    AttentionRule(0.2, window=50),
    AttentionRule(0.2, window=40, sinks=4),
    AttentionRule(0.2, window=40, sinks=2**32),
    AttentionRule(0.2, window=2**32 + 3),
    AttentionRule(0.2, softcap=20.0, window=130, sinks=130),
]


def all_of(paged: Paged) -> list[tuple[int, int, int]]:
    return [(number, 0, len(queries)) for number, queries in enumerate(paged.queries)]


def check_against_exact(paged: Paged, found: Tensor, rule: AttentionRule) -> None:
    """In bfloat16 every weight is rounded once, and so is the result; else to 1e-5."""
    first = 0
    for number, queries in enumerate(paged.queries):
        truth, size = exact(paged, number, 0, len(queries), rule)
        error = (found[first : first + len(queries)].double() - truth).abs()
        half_precision = found.dtype == bf16
        bound = HALF_ULP * EXTRA * (size + truth.abs()) if half_precision else 1e-5 * (1 + size)
        assert (error <= bound + 1e-5).all(), (number, (error - bound).max())
        first += len(queries)


@needs_kernels
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernel_and_plain_form_compute_the_definition(sizes: Sizes, rule: AttentionRule) -> None:
    paged = fill(LENGTHS, sizes, bf16)
    reading, query = paged.reading(all_of(paged))
    check_against_exact(paged, attend(paged.pages, query, reading, rule), rule)
    check_against_exact(paged, plain_attend(paged.pages, query, reading, rule), rule)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("sizes", [Sizes(6, 2, 16), Sizes(3, 1, 20), Sizes(2, 2, 288)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, bf16], ids=str)
def test_the_plain_form_takes_any_size_and_dtype(
    sizes: Sizes, rule: AttentionRule, dtype: torch.dtype
) -> None:
    paged = fill(LENGTHS, sizes, dtype)
    reading, query = paged.reading(all_of(paged))
    found = attend(paged.pages, query, reading, rule)
    assert found.dtype == dtype
    check_against_exact(paged, found, rule)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Paged, AttentionRule, random.Random]:
    num_kv = draw(st.integers(1, 3))
    sizes = Sizes(num_kv * draw(st.integers(1, 16)), num_kv, draw(st.sampled_from([32, 64])))
    shared = draw(st.integers(0, 200))
    lengths = draw(st.lists(st.integers(shared + 1, shared + 120), min_size=1, max_size=4))
    rule = AttentionRule(
        scale=0.3,
        softcap=draw(st.none() | st.just(10.0)),
        window=draw(st.none() | st.integers(1, 300)),
        sinks=draw(st.sampled_from([0, 1, 40])),
    )
    paged = fill(lengths, sizes, bf16, shared=shared, seed=draw(st.integers(0, 99)))
    return paged, rule, draw(st.randoms(use_true_random=False))


@needs_kernels
@given(batch=batches())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_a_token_reads_the_same_bits_in_any_batch_order_and_chunk(
    batch: tuple[Paged, AttentionRule, random.Random],
) -> None:
    paged, rule, draw = batch
    reading, query = paged.reading(all_of(paged))
    whole = attend(paged.pages, query, reading, rule)
    offsets = [0]
    for queries in paged.queries:
        offsets.append(offsets[-1] + len(queries))
    picks: list[tuple[int, int, int]] = []
    for number, queries in enumerate(paged.queries):
        first = 0
        while first < len(queries):
            count = min(draw.choice([1, 1, 2, 33, 90]), len(queries) - first)
            picks.append((number, first, count))
            first += count
    draw.shuffle(picks)
    while picks:
        width = draw.randint(1, 12)
        some, picks = picks[:width], picks[width:]
        reading, query = paged.reading(some)
        found = attend(paged.pages, query, reading, rule)
        expected = [whole[offsets[n] + first : offsets[n] + first + c] for n, first, c in some]
        assert torch.equal(found, torch.cat(expected))


@needs_kernels
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_pages_may_be_moved_and_shared(rule: AttentionRule) -> None:
    apart = fill((200, 210, 140), Sizes(6, 2, 32), bf16, shared=0, seed=3)
    together = fill((200, 210, 140), Sizes(6, 2, 32), bf16, shared=0, seed=3)
    for number in (1, 2):  # the same contents, once in pages of their own and once in shared ones
        for pages, tables in ((apart.pages, apart.tables), (together.pages, together.tables)):
            pages[tables[number][:4]] = pages[tables[0][:4]]
        together.tables[number][:4] = together.tables[0][:4]
    order = torch.randperm(len(together.pages))
    moved = together.pages[order]
    place = order.argsort().tolist()
    found: list[Tensor] = []
    for paged in (apart, together):
        found.append(attend(paged.pages, *reversed(paged.reading(all_of(paged))), rule))
    together.tables = [[place[page] for page in table] for table in together.tables]
    found.append(attend(moved, *reversed(together.reading(all_of(together))), rule))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_kernels
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_stands_behind_a_token_changes_nothing(rule: AttentionRule) -> None:
    paged = fill((70,), Sizes(4, 2, 32), bf16)
    reading, query = paged.reading([(0, 0, 40)])
    before = attend(paged.pages, query, reading, rule)
    later = Reading.of([(paged.tables[0], 40, 30)]).slots()
    key, value = torch.full((2, 30, 2, 32), 1e4, dtype=bf16)
    put(paged.pages, key, value, later)
    assert torch.equal(attend(paged.pages, query, reading, rule), before)


@needs_kernels
def test_one_thread_and_two_give_the_same_bits() -> None:
    paged = fill(LENGTHS, Sizes(9, 3, 64), bf16)
    reading, query = paged.reading(all_of(paged))
    found: list[Tensor] = []
    for count in (1, 2):
        with threads(count):
            found.append(attend(paged.pages, query, reading, RULES[0]))
    assert torch.equal(*found)


@needs_kernels
@pytest.mark.parametrize("size", [32, 64, 256])
def test_both_forms_of_putting_write_the_same_each_in_its_layout(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 80, 3, size, generator=generator).to(bf16)
    tokens = torch.tensor([5, 79, 0, 5, 33])
    places = torch.randperm(4 * PAGE, generator=generator)
    compiled, plain = torch.zeros(2, 4, 2, 3, PAGE * size, dtype=bf16)
    put(compiled, key, value, places[:80])
    put(compiled, key, value, places[80:85], tokens)
    with without_kernels():
        put(plain, key, value, places[:80])
        put(plain, key, value, places[80:85], tokens)
    assert torch.equal(to_natural(compiled), plain)
    assert torch.equal(compiled, to_interleaved(plain))
    assert compiled.count_nonzero() == (80 + 5) * 2 * 3 * size


@needs_kernels
def test_no_tokens_read_nothing() -> None:
    paged = fill((40,), Sizes(4, 2, 32), bf16)
    reading, query = paged.reading([(0, 0, 0)])
    assert attend(paged.pages, query, reading, RULES[0]).shape == (0, 4, 32)


def test_slots_are_places_in_the_pages_of_a_table() -> None:
    reading = Reading.of([([7, 3], 30, 4), ([9], 0, 1)])
    assert reading.slots().tolist() == [7 * 32 + 30, 7 * 32 + 31, 3 * 32, 3 * 32 + 1, 9 * 32]


def test_a_neighbour_that_is_not_a_number_disturbs_nobody() -> None:
    for dtype in (bf16, torch.float32):
        paged = fill((40, 300, 37), Sizes(2, 1, 32), dtype)
        reading, query = paged.reading(all_of(paged))
        expected = attend(paged.pages, query, reading, RULES[0])
        paged.pages[paged.tables[1]] = torch.nan
        found = attend(paged.pages, query, reading, RULES[0])
        assert found[40:340].isnan().all()
        for part in (slice(0, 40), slice(340, None)):
            torch.testing.assert_close(found[part], expected[part], rtol=0, atol=0)


def test_new_pages_are_zeros_of_the_layer() -> None:
    pages = new_pages(shape_from_config(tiny_config()), 5, torch.float32)
    assert pages.shape == (5, 2, 2, 32 * 32)
    assert not pages.any()


@pytest.mark.parametrize("sizes", [Sizes(9, 3, 64), Sizes(2, 2, 20)], ids=str)
def test_pages_that_rows_share_are_read_once_to_the_same_result(sizes: Sizes) -> None:
    lengths = (100, 101, 140, 170, 33, 300)
    with without_kernels():
        paged = fill(lengths, sizes, bf16, shared=32)
        for number, other, pages in ((1, 0, 3), (2, 0, 1), (3, 2, 4)):
            paged.tables[number][:pages] = paged.tables[other][:pages]
            for kept in (paged.keys, paged.values):
                kept[number][: 32 * pages] = kept[other][: 32 * pages]
        reading, query = paged.reading([(n, length - 1, 1) for n, length in enumerate(lengths)])
        own, shared = reading.stretches(
            None, 0, sizes.num_kv, sizes.num_heads // sizes.num_kv, share=True
        )
        assert shared is not None
        assert {tuple(sorted(set(rows))) for rows in shared.rows.tolist()} == {(0, 1), (2, 3)}
        assert sum(len(some.rows) * len(some.numbers) for some in own) < sum(
            len(table) for table in paged.tables
        )
        found = attend(paged.pages, query, reading, RULES[0])
    for number, length in enumerate(lengths):
        truth, size = exact(paged, number, length - 1, 1, RULES[0])
        error = (found[number].double() - truth[0]).abs()
        assert (error <= HALF_ULP * EXTRA * (size[0] + truth[0].abs()) + 1e-5).all()
