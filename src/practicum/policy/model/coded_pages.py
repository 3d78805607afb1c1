"""Pages in 8 or 4 bits: keys per channel over the page's 32 tokens, values per token (KIVI).

The one thing to know: a code `q` stands for `low + q * step`, rounded to the pages' dtype, and what
attention reads is a page of that dtype again. Both scales are bfloat16 and the step is rounded up,
so a code is off by half a step at most. Pages are coded whole: codes never depend on when.

A coded head of a page is one row of bytes: codes of keys [C/2, 2 or 1, 32], lows [C], steps [C],
codes of values [16, C/16 or C/32, 32], lows [32], steps [32]; with 4 bits a byte holds a code of
one run of 16 pairs and, above it, one of the next. (Liu et al. 2024, 2402.02750)

Shapes: N pages, K key-value heads, C head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from practicum.policy.model.native import kernels
from practicum.policy.model.page_layout import HALF, PAGE, to_interleaved, to_natural
from practicum.policy.model.products import widen


def coded_bytes(head_size: int, bits: int) -> int:
    """Of one key-value head of a page, scales included."""
    return 2 * PAGE * head_size * bits // 8 + 4 * head_size + 4 * PAGE


def code(
    pages: Tensor,
    sources: Tensor,
    targets: Tensor,
    bits: int,
    coded: Tensor | None,
    bounds: Tensor | None,
) -> None:
    """Code pages of one layer, `sources` to `targets`, both int64 [N].

    `coded` is uint8 [P, K, bytes]; `bounds` receives the lowest and highest key of every channel,
    [P, K, C, 2]. Either may be left out.
    """
    head_size = pages.shape[-1] // PAGE
    if kernels.serves(pages.dtype, head_size):
        kernels.code(pages, sources, targets, bits, coded, bounds)
        return
    some = to_interleaved(pages[sources])
    if coded is not None:
        coded[targets] = plain_code(some, bits)
    if bounds is not None:
        bounds[targets] = plain_bounds(some)


def decode(coded_NKB: Tensor, head_size: int, bits: int, dtype: torch.dtype) -> Tensor:
    """Pages [N, 2, K, 32 * C] in the layout that exact ones have."""
    num_pages, num_kv = coded_NKB.shape[:2]
    if not kernels.serves(dtype, head_size):
        return to_natural(plain_decode(coded_NKB, head_size, bits, dtype))
    pages = torch.empty((num_pages, 2, num_kv, PAGE * head_size), dtype=dtype)
    numbers = torch.arange(num_pages)
    kernels.decode(coded_NKB.contiguous(), numbers, numbers, bits, pages)
    return pages


def plain_code(pages: Tensor, bits: int) -> Tensor:
    """uint8 [N, K, bytes] of interleaved pages: the definition."""
    head_size = pages.shape[-1] // PAGE
    keys, values = _groups(widen(pages), head_size)
    parts: list[Tensor] = []
    for group in (keys, values):  # [N, K, groups, vectors, 16, 2]
        low, step = _scales(group, 2**bits - 1)
        codes = ((group - low) / step).round().nan_to_num(0.0).clamp(0, 2**bits - 1)
        codes = codes.to(torch.uint8).flatten(-2)
        if bits == 4:
            codes = codes[..., ::2, :] | codes[..., 1::2, :] << 4
        scales = (scale.to(torch.bfloat16).flatten(2).view(torch.uint8) for scale in (low, step))
        parts += [codes.flatten(2), *scales]
    return torch.cat(parts, dim=-1)


def plain_decode(coded_NKB: Tensor, head_size: int, bits: int, dtype: torch.dtype) -> Tensor:
    """Interleaved pages: the definition of `decode`."""
    num_codes = PAGE * head_size * bits // 8
    sizes = (num_codes, 2 * head_size, 2 * head_size, num_codes, 2 * PAGE, 2 * PAGE)
    key_codes, key_low, key_step, codes, low, step = coded_NKB.split(sizes, dim=-1)
    keys = _decoded(key_codes, key_low, key_step, head_size // 2, bits)  # [N, K, C/2, 2, 16, 2]
    values = _decoded(codes, low, step, HALF, bits)  # [N, K, 16, C/16, 16, 2]
    both = (keys.transpose(2, 3).flatten(2), values.flatten(2))
    return torch.stack(both, dim=1).to(dtype)


def plain_bounds(pages: Tensor) -> Tensor:
    """[N, K, C, 2]: lowest and highest key of every channel of interleaved pages."""
    keys, _ = _groups(pages, pages.shape[-1] // PAGE)
    low, high = keys.amin((-3, -2)), keys.amax((-3, -2))  # [N, K, C/2, 2]
    return torch.stack((low, high), dim=-1).flatten(2, 3)


def _groups(pages: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """Keys [N, K, C/2, 2, 16, 2] and values [N, K, 16, C/16, 16, 2]: pairs with common scales.

    All first elements of the pairs of a group share one scale, all second ones another.
    """
    keys = pages[:, 0].unflatten(-1, (2, head_size // 2, HALF, 2)).transpose(2, 3)
    values = pages[:, 1].unflatten(-1, (HALF, head_size // HALF, HALF, 2))
    return keys, values


def _scales(groups: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Low and step of each group's firsts and seconds, [N, K, groups, 1, 1, 2]; bfloat16 values."""
    low = _down(groups.amin((-3, -2), keepdim=True).float())
    high = groups.amax((-3, -2), keepdim=True).float()
    bits = ((high - low) / levels).view(torch.int32)
    return low, ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)


def _down(x: Tensor) -> Tensor:
    """The next bfloat16 at or below."""
    bits = x.contiguous().view(torch.int32)
    return torch.where(x < 0, (bits + 0xFFFF) & ~0xFFFF, bits & ~0xFFFF).view(torch.float32)


def _decoded(codes: Tensor, low: Tensor, step: Tensor, num_groups: int, bits: int) -> Tensor:
    """float32 [N, K, groups, vectors, 16, 2]."""
    codes = codes.unflatten(-1, (num_groups, -1, PAGE))
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=-2).flatten(-3, -2)
    scales = (
        scale.contiguous().view(torch.bfloat16).float().unflatten(-1, (num_groups, 1, 1, 2))
        for scale in (low, step)
    )
    lows, steps = scales
    return lows + codes.unflatten(-1, (HALF, 2)).float() * steps
