"""Numbers read the way people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.observe import wording
from practicum.statistics import Interval, PairedDifference


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00"), (0.01234, "0.0123"), (0.5, "0.500"), (-12.34, "−12.3"), (12345.6, "12,346"),
     (3e-7, "3.00e−07"), (math.nan, "–"), (-math.inf, "−∞")],
)  # fmt: skip
def test_number(value: float, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (59.96, "1 min 00 s"), (192, "3 min 12 s"),
     (7500, "2 h 05 min"), (math.inf, "–")],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


def test_intervals_and_points() -> None:
    assert wording.mean_and_interval(Interval(0.4312, 0.377, 0.485, 12)) == "0.43 [0.38, 0.48]"
    assert wording.mean_and_interval(Interval(1.0, -math.inf, math.inf, 1)) == "1.00 [−∞, ∞]"
    assert wording.share_and_interval(Interval(0.43, 0.379, 0.482, 128)) == "43.0 % [37.9, 48.2]"
    gain = PairedDifference(0.2109, 0.14, 0.281, 128, 1e-8)
    assert wording.points(gain) == "+21.1 [+14.0, +28.1]"
    assert wording.signed_points(-0.0001) == "0.0"
    assert wording.p_value(1e-9) == "p < 0.001"
    assert wording.p_value(0.042) == "p = 0.042"


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(1, 60))
def test_a_sparkline_fits_its_width(values: list[float], width: int) -> None:
    line = wording.sparkline(values, width)
    assert len(line) == min(len(values), width)


def test_sparkline_shape() -> None:
    assert wording.sparkline([0, 1, 2]) == "▁▅█"
    assert wording.sparkline([3, 3]) == "▁▁"
    assert wording.sparkline([math.nan]) == ""
    assert wording.sparkline([0, 0, 8, 8], width=2) == "▁█"
