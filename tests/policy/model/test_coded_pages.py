"""Pages in 8 and 4 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from practicum.policy.model.coded_pages import (
    PAGE,
    code,
    coded_bytes,
    decode,
    plain_bounds,
    plain_code,
    plain_decode,
)
from practicum.policy.model.native import kernels


def random_pages(head_size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Seven pages of three heads whose channels differ widely, as real keys do."""
    generator = torch.Generator().manual_seed(head_size)
    pages = torch.randn(7, 2, 3, PAGE * head_size, generator=generator)
    pages[:, :, :, ::7] *= 20
    pages[0, 0, 0, :64] = 1.0  # a channel without spread
    return pages.to(dtype)


def channels(pages: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """Keys and values as [N, K, 32 tokens, C]."""
    keys = pages[:, 0].unflatten(-1, (2, head_size // 2, 16, 2))
    keys = keys.permute(0, 1, 2, 4, 3, 5).flatten(4).flatten(2, 3)
    values = pages[:, 1].unflatten(-1, (16, head_size, 2)).transpose(-1, -2).flatten(2, 3)
    return keys.float(), values.float()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("head_size", [32, 64, 128])
def test_every_code_is_within_half_a_step_of_what_it_stands_for(head_size: int, bits: int) -> None:
    pages = random_pages(head_size, torch.float32)
    back = plain_decode(plain_code(pages, bits), head_size, bits, torch.float32)
    for ours, right, tokens_or_channels in zip(
        channels(back, head_size), channels(pages, head_size), (2, 3)
    ):
        low = right.amin(tokens_or_channels, keepdim=True)
        spread = right.amax(tokens_or_channels, keepdim=True) - low
        # Half a step, the step rounded up to 8 bits, and the low rounded down.
        step = spread * (1 + 2**-7) / (2**bits - 1) + low.abs() * 2**-7
        assert ((ours - right).abs() <= step * 0.501 + 1e-6).all()


@pytest.mark.skipif(not kernels.serves(torch.bfloat16), reason="no compiled kernels here")
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("head_size", [32, 64, 128])
def test_compiled_codes_are_those_of_the_definition(head_size: int, bits: int) -> None:
    pages = random_pages(head_size)
    coded = torch.zeros(9, 3, coded_bytes(head_size, bits), dtype=torch.uint8)
    bounds = torch.zeros(9, 3, head_size, 2, dtype=torch.bfloat16)
    targets = torch.tensor([8, 1, 2, 3, 4, 0, 5])
    code(pages, torch.arange(7), targets, bits, coded, bounds)
    assert torch.equal(coded[targets], plain_code(pages, bits))
    assert torch.equal(bounds[targets], plain_bounds(pages))
    assert not coded[[6, 7]].any()
    ours = decode(coded[targets], head_size, bits, torch.bfloat16)
    assert torch.equal(ours, plain_decode(coded[targets], head_size, bits, torch.bfloat16))


def test_bounds_hold_every_key() -> None:
    pages = random_pages(64)
    keys, _ = channels(pages, 64)
    low, high = plain_bounds(pages).float().unbind(-1)
    assert (keys >= low[:, :, None]).all()
    assert (keys <= high[:, :, None]).all()
    assert torch.equal(keys.amax(2), high)


def test_coded_heads_have_the_size_that_memory_is_counted_with() -> None:
    for head_size in (32, 64, 128):
        for bits in (8, 4):
            row = plain_code(random_pages(head_size), bits)
            assert row.shape[-1] == coded_bytes(head_size, bits)
