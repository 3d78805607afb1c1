"""How a page's keys and values lie in memory: as compiled kernels read them, or in natural order.

The one thing to know: `interleaved(dtype, head_size)` decides, for all that read or write pages.
Both layouts of a layer's pages are [P, 2, K, 32 * C]. Natural are keys and values [32 tokens, C].
Interleaved are keys [2 halves, C/2, 16 tokens, 2] and values [16 pairs of tokens, C, 2], which is
how matrix units read them.

Shapes: P pages, K key-value heads, C head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from practicum.policy.model.native import kernels

PAGE = 32
"""Positions in a page."""
HALF = 16


def interleaved(dtype: torch.dtype, head_size: int) -> bool:
    """Whether pages of this kind are laid out for the kernels, because there are some."""
    return kernels.serves(dtype, head_size)


def to_natural(pages: Tensor) -> Tensor:
    """Interleaved pages in natural order; a copy."""
    size = pages.shape[-1] // PAGE
    keys = pages[:, 0].unflatten(-1, (2, size // 2, HALF, 2)).transpose(-3, -2)
    values = pages[:, 1].unflatten(-1, (HALF, size, 2)).transpose(-2, -1)
    return torch.stack((keys.flatten(2), values.flatten(2)), dim=1)


def to_interleaved(pages: Tensor) -> Tensor:
    """Natural pages as the kernels read them; a copy."""
    size = pages.shape[-1] // PAGE
    keys = pages[:, 0].unflatten(-1, (2, HALF, size // 2, 2)).transpose(-3, -2)
    values = pages[:, 1].unflatten(-1, (HALF, 2, size)).transpose(-2, -1)
    return torch.stack((keys.flatten(2), values.flatten(2)), dim=1)
