"""How numbers read in terminals and reports: the same words everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from practicum.statistics import Interval, PairedDifference

_BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float, digits: int = 3) -> str:
    """`digits` significant digits without an exponent where people would not write one.

    Example:
        number(0.01234) == "0.0123"; number(12345.6) == "12,346"
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    magnitude = abs(value)
    if magnitude >= 10**digits:
        return f"{value:,.0f}".replace("-", "−")
    if magnitude and magnitude < 1e-4:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    decimals = digits - 1 - (math.floor(math.log10(magnitude)) if magnitude else 0)
    return f"{value:.{max(0, min(decimals, 6))}f}".replace("-", "−")


def fixed(value: float, decimals: int = 2) -> str:
    """Fixed decimals with a true minus sign; a rounded zero has no sign."""
    if not math.isfinite(value):
        return number(value)
    return (
        f"{value:.{decimals}f}".replace("-", "−") if round(value, decimals) else f"{0:.{decimals}f}"
    )


def percent(share: float, decimals: int = 0) -> str:
    """`83 %`."""
    return f"{fixed(100 * share, decimals)} %"


def mean_and_interval(interval: Interval) -> str:
    """`0.43 [0.38, 0.48]`."""
    return f"{fixed(interval.mean)} [{fixed(interval.low)}, {fixed(interval.high)}]"


def share_and_interval(interval: Interval) -> str:
    """`43.0 % [37.9, 48.2]`."""
    low, high = fixed(100 * interval.low, 1), fixed(100 * interval.high, 1)
    return f"{percent(interval.mean, 1)} [{low}, {high}]"


def points(difference: PairedDifference) -> str:
    """`+21.1 [14.0, 28.1]`, in percentage points."""
    return f"{signed_points(difference.mean)} {points_range(difference)}"


def signed_points(share: float) -> str:
    """`+21.1`; `0.0` has no sign."""
    text = fixed(100 * share, 1)
    return f"+{text}" if round(100 * share, 1) > 0 else text


def points_range(difference: PairedDifference) -> str:
    """`[+14.0, +28.1]`."""
    return f"[{signed_points(difference.low)}, {signed_points(difference.high)}]"


def p_value(p: float) -> str:
    """`p = 0.03`, `p < 0.001`."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 12 s`, `2 h 05 min`."""
    if not math.isfinite(seconds) or seconds < 0:
        return "–"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def sparkline(
    values: Sequence[float], width: int = 40, limits: tuple[float, float] | None = None
) -> str:
    """A curve in one line of text, from the least to the greatest value or between `limits`.

    More values than `width` are drawn as means of neighbours.

    Example:
        sparkline([0, 1, 2]) == "▁▅█"
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    if len(known) > width:
        edges = [round(i * len(known) / width) for i in range(width + 1)]
        known = [sum(known[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = limits or (min(known), max(known))
    span = high - low
    heights = [min(max((value - low) / span, 0.0), 1.0) if span else 0.0 for value in known]
    return "".join(_BLOCKS[round(height * (len(_BLOCKS) - 1))] for height in heights)
