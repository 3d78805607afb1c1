"""`practicum bench long`, shrunk to seconds."""

from __future__ import annotations

import json

import pytest

from practicum.bench.long_context import bench_long
from practicum.bench.long_costs import MODELS
from practicum.bench.long_work import random_tokens
from practicum.errors import UsageError


def test_parts_that_need_no_download_run_and_print_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench_long(only="tiny,costs", threads=1, quick=True, as_json=True) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["tiny"][0]["prompt"] == 1024
    assert results["tiny"][0]["cpu s"] > 0
    assert [row["model"] for row in results["costs"]] == list(MODELS)


def test_costs_of_a_token_are_those_of_its_heads(capsys: pytest.CaptureFixture[str]) -> None:
    bench_long(only="costs", threads=1, quick=True, as_json=True)
    row = json.loads(capsys.readouterr().out)["costs"][0]
    assert row["bytes/token 16 bit"] == 30 * 3 * 2 * 64 * 2
    # 64 codes of half a byte, for keys and values; 4 bytes of scales for each of 64 channels and
    # 32 tokens of a page.
    assert row["bytes/token 4 bit"] == 30 * 3 * (64 + 4 * (64 + 32) // 32)


def test_a_part_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"no part 'needle'\. Did you mean 'needles'"):
        bench_long(only="needle", threads=1, quick=True, as_json=False)
    with pytest.raises(UsageError, match="at least 1, not 0"):
        bench_long(only="costs", threads=0, quick=True, as_json=False)


def test_random_tokens_depend_on_the_seed_alone() -> None:
    assert random_tokens(5, 100, 1) == random_tokens(5, 100, 1) != random_tokens(5, 100, 2)
