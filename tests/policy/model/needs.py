"""What some tests need, and how they vary it."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch

from practicum.policy.model.native import kernels

needs_kernels = pytest.mark.skipif(
    not kernels.serves(torch.bfloat16),
    reason="no compiled kernels here: they need AVX2 and a C++ compiler",
)

HALF_ULP = 2.0**-8
"""Most that rounding to bfloat16 moves a number, relative to it."""
EXTRA = 1.01
"""For what is computed in float32 before the rounding: some 1e-6 of it."""


@contextmanager
def without_kernels() -> Generator[None]:
    """As on a machine without a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "serves", lambda *_: False)
        yield


@contextmanager
def threads(count: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
