"""Attention whose far pages are coded, or chosen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from practicum.policy.model.coded_pages import PAGE, code, coded_bytes
from practicum.policy.model.far_pages import Far, far_end
from practicum.policy.model.native import kernels
from practicum.policy.model.paged import Reading, attend, plain_attend, put
from practicum.policy.model.shape import AttentionRule

HEADS, KV, SIZE, LENGTH = 6, 2, 32, 700
RULE = AttentionRule(SIZE**-0.5)
COMPILED = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(not kernels.serves(torch.bfloat16), reason="no compiled kernels"),
)


class Case:
    """One sequence in shuffled pages, coded and bounded."""

    def __init__(self, dtype: torch.dtype, bits: int, recent: int, top_pages: int) -> None:
        generator = torch.Generator().manual_seed(0)
        count = -(-LENGTH // PAGE)
        self.table = torch.randperm(count + 3, generator=generator)[:count].tolist()
        self.pages = torch.zeros(count + 3, 2, KV, PAGE * SIZE, dtype=dtype)
        key, value = torch.randn(2, LENGTH, KV, SIZE, generator=generator).to(dtype).unbind()
        put(self.pages, key, value, self.reading(0, LENGTH).slots())
        self.query = torch.randn(LENGTH, HEADS, SIZE, generator=generator).to(dtype)
        self.coded = None
        if bits < 16:
            self.coded = torch.zeros(count + 3, KV, coded_bytes(SIZE, bits), dtype=torch.uint8)
        self.bounds = torch.zeros(count + 3, KV, SIZE, 2, dtype=dtype)
        numbers = torch.tensor(self.table[: LENGTH // PAGE])
        code(self.pages, numbers, numbers, bits, self.coded, self.bounds)
        self.how = (recent, bits, self.coded, self.bounds, top_pages)

    def reading(self, first: int, count: int) -> Reading:
        return Reading.of([(self.table, first, count)])

    def far(self) -> Far:
        return Far(torch.tensor(self.table, dtype=torch.int32), *self.how)

    def all(self) -> Tensor:
        return attend(self.pages, self.query, self.reading(0, LENGTH), RULE, self.far())


CASES = [(8, 128, 0), (4, 0, 0), (4, 128, 5), (16, 128, 5)]


@pytest.mark.parametrize(("bits", "recent", "top_pages"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, COMPILED])
def test_a_query_reads_the_same_in_any_chunk(
    dtype: torch.dtype, bits: int, recent: int, top_pages: int
) -> None:
    case = Case(dtype, bits, recent, top_pages)
    whole = case.all()
    for first, count in ((0, 130), (130, 1), (255, 200), (699, 1)):
        part = attend(
            case.pages,
            case.query[first : first + count],
            case.reading(first, count),
            RULE,
            case.far(),
        )
        if dtype == torch.bfloat16:
            assert torch.equal(part, whole[first : first + count])
        else:
            torch.testing.assert_close(part, whole[first : first + count], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("bits", "recent", "top_pages"), CASES)
@pytest.mark.skipif(not kernels.serves(torch.bfloat16), reason="no compiled kernels here")
def test_the_compiled_attention_is_the_defined_one(bits: int, recent: int, top_pages: int) -> None:
    case = Case(torch.bfloat16, bits, recent, top_pages)
    right = plain_attend(case.pages, case.query, case.reading(0, LENGTH), RULE, case.far())
    torch.testing.assert_close(case.all().float(), right.float(), rtol=0.02, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, COMPILED])
def test_far_keys_come_from_codes_and_recent_ones_from_pages(dtype: torch.dtype) -> None:
    case = Case(dtype, bits=8, recent=128, top_pages=0)
    right = case.all()[600]
    assert case.coded is not None
    first_exact = int(far_end(torch.tensor(600), 128))
    assert first_exact == 384
    case.pages[case.table[: first_exact // PAGE]] = 7.0  # never read at position 600
    case.coded[case.table[first_exact // PAGE :]] = 77
    assert torch.equal(case.all()[600], right)
    case.coded[case.table[first_exact // PAGE - 1]] = 99
    assert not torch.equal(case.all()[600], right)


@pytest.mark.parametrize("dtype", [torch.float32, COMPILED])
def test_only_the_pages_that_could_score_highest_are_read(dtype: torch.dtype) -> None:
    case = Case(dtype, bits=16, recent=128, top_pages=2)
    hot = case.table[7]
    direction = case.query[600, :3].float().mean(0)
    keys = (direction * 50).to(dtype).expand(PAGE, KV, SIZE)
    value = torch.full((PAGE, KV, SIZE), 3.0, dtype=dtype)
    put(case.pages, keys, value, hot * PAGE + torch.arange(PAGE))
    code(case.pages, torch.tensor([hot]), torch.tensor([hot]), 16, None, case.bounds)
    right = case.all()[600, :3]
    torch.testing.assert_close(right.float(), torch.full((3, SIZE), 3.0), rtol=0.02, atol=0.02)
    unread = [page for page in case.table[1:12] if page != hot]
    case.pages[unread, 1] = 1000.0  # values of pages that are neither first, chosen nor recent
    assert torch.equal(case.all()[600, :3], right)


@pytest.mark.parametrize("dtype", [torch.float32, COMPILED])
def test_choosing_all_pages_is_full_attention(dtype: torch.dtype) -> None:
    case = Case(dtype, bits=16, recent=128, top_pages=100)
    full = attend(case.pages, case.query, case.reading(0, LENGTH), RULE)
    if dtype == torch.bfloat16:
        assert torch.equal(case.all(), full)
    else:
        torch.testing.assert_close(case.all(), full)


@pytest.mark.parametrize("dtype", [torch.float32, COMPILED])
def test_pages_outside_sinks_and_window_are_not_read(dtype: torch.dtype) -> None:
    """Their entries may name any page of finite contents: whoever frees them need do no more."""
    case = Case(dtype, bits=16, recent=0, top_pages=0)
    rule = AttentionRule(SIZE**-0.5, window=100, sinks=4)
    reading = case.reading(600, 100)
    right = attend(case.pages, case.query[600:], reading, rule)
    freed = list(range(4, 12))  # whole blocks between the sinks' and the window's
    case.pages[[case.table[page] for page in freed]] = 5.0
    for page in freed:
        case.table[page] = case.table[0]
    reading = case.reading(600, 100)
    assert torch.equal(attend(case.pages, case.query[600:], reading, rule), right)


SPLIT = """
import torch
from practicum.policy.model.paged import Reading, attend, put
from practicum.policy.model.shape import AttentionRule
torch.manual_seed(0)
length, kv, size = 5000, 1, 64
pages = torch.zeros(157, 2, kv, 32 * size, dtype=torch.bfloat16)
key = torch.randn(length, kv, size).bfloat16()
put(pages, key, key.flip(0), Reading.of([(range(157), 0, length)]).slots())
query = torch.randn(3, 3, size).bfloat16()
reading = Reading.of([(range(157), 4999, 1), (range(157), 3000, 2)])
results = []
for threads in (1, 2, 3):
    torch.set_num_threads(threads)
    results.append(attend(pages, query, reading, AttentionRule(0.125)))
    results.append(attend(pages, query, reading, AttentionRule(0.125, 30.0, 2000, 4)))
assert all(torch.equal(results[i], results[i % 2]) for i in range(6))
assert not torch.equal(results[0], results[1])
"""


@pytest.mark.skipif(not kernels.serves(torch.bfloat16), reason="no compiled kernels here")
def test_threads_share_the_keys_of_one_row_without_changing_a_bit() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", SPLIT], check=True, env=environment)
