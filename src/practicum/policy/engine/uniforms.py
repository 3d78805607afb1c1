"""The random numbers of a request: a counter-based stream, one uniform per token.

Number i of a seed depends on the seed and i alone and is had without the numbers before it, so a
request draws the same tokens whatever shares its batch, whatever interrupts it, and however many
tokens one step verifies.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

WINDOW = 64
"""Numbers made at a time: a generator costs as much to set up as hundreds of numbers."""

_NUMBERS_PER_COUNT = 4
"""Philox makes four 64-bit words of every count."""


def uniforms(seed: int, count: int, start: int = 0) -> npt.NDArray[np.float64]:
    """Numbers `start` to `start + count` of a seed's stream, each in [0, 1)."""
    skipped = start % _NUMBERS_PER_COUNT
    bits = np.random.Philox(key=seed & (2**128 - 1), counter=start // _NUMBERS_PER_COUNT)
    return np.random.Generator(bits).random(skipped + count)[skipped:]


@dataclass(slots=True)
class Stream:
    """The stream of one request.

    Example:
        stream = Stream(seed=7)
        stream[1000] == uniforms(7, 1001)[1000]
    """

    seed: int
    _start: int = 0
    _window: list[float] = field(default_factory=list[float])

    def __getitem__(self, index: int) -> float:
        assert index >= 0, "a stream has no end to count from"
        place = index - self._start
        if not 0 <= place < len(self._window):
            place = index % WINDOW
            self._start = index - place
            self._window = uniforms(self.seed, WINDOW, self._start).tolist()
        return self._window[place]

    def coming(self, index: int, most: int) -> list[float]:
        """Number `index` and those after it that are made already, up to `most`."""
        self[index]
        place = index - self._start
        return self._window[place : place + most]
