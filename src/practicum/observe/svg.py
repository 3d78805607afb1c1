"""Small charts as inline SVG: pure functions from numbers to markup, with words for listeners.

Shapes carry classes and no colours, so that the page's style decides them for light and dark. Every
text is escaped by `Markup.format`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from practicum.observe.curves import Curve
from practicum.observe.hostile import sanitise
from practicum.observe.wording import fixed, number
from practicum.statistics import PairedDifference

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area within a picture, and the data ranges it shows."""

    width: float
    height: float
    x: Range
    y: Range
    left: float = 46.0
    right: float = 14.0
    top: float = 12.0
    bottom: float = 30.0

    def across(self, value: float) -> float:
        low, high = self.x
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def up(self, value: float) -> float:
        low, high = self.y
        clipped = min(max(value, low), high)
        return (
            self.height
            - self.bottom
            - (clipped - low) / (high - low) * (self.height - self.top - self.bottom)
        )


def line_chart(
    curve: Curve,
    title: str,
    *,
    size: tuple[float, float],
    y: Range | None = None,
    num_ticks: int = 5,
) -> Markup:
    """A curve over steps: each step as a hairline, the trend bold, with its interval as a band."""
    assert curve, f"nothing to draw for {title!r}"
    x = (float(curve[0].step), float(max(curve[-1].step, curve[0].step + 1)))
    frame = Frame(*size, x=x, y=y or nice_range(curve))
    means = [(frame.across(p.step), frame.up(p.mean)) for p in curve]
    trend = [(frame.across(p.step), frame.up(p.trend)) for p in curve]
    band = [(frame.across(p.step), frame.up(p.high)) for p in curve] + [
        (frame.across(p.step), frame.up(p.low)) for p in reversed(curve)
    ]
    parts = [_axes(frame, num_ticks)]
    if any(point.low != point.high for point in curve):
        parts.append(Markup('<polygon class="band" points="{}"/>').format(_points(band)))
    parts.append(Markup('<polyline class="hair" points="{}"/>').format(_points(means)))
    parts.append(Markup('<polyline class="trend" points="{}"/>').format(_points(trend)))
    if len(curve) == 1:
        parts.append(Markup('<circle class="dot" cx="{}" cy="{}" r="3"/>').format(*means[0]))
    words = (
        f"{len(curve)} steps, from {number(curve[0].mean)} at step {curve[0].step} "
        f"to {number(curve[-1].mean)} at step {curve[-1].step}"
    )
    return _picture(frame.width, frame.height, title, words, parts)


def difference_plot(difference: PairedDifference, limits: Range, title: str) -> Markup:
    """One row of a forest plot: a dot with its interval against the line of no difference."""
    frame = Frame(300, 38, limits, (0, 1), left=16, right=16, top=0, bottom=0)
    low, high = (min(max(v, limits[0]), limits[1]) for v in (difference.low, difference.high))
    sure = "gain" if difference.low > 0 else "loss" if difference.high < 0 else "unsure"
    span = Markup('<line class="{}" x1="{}" x2="{}" y1="19" y2="19"/>').format(
        f"span {sure}", _at(frame.across(low)), _at(frame.across(high))
    )
    dot = Markup('<circle class="{}" cx="{}" cy="19" r="4.5"/>').format(
        f"dot {sure}", _at(frame.across(difference.mean))
    )
    words = (
        f"{fixed(100 * difference.mean, 1)} points, 95 % interval from "
        f"{fixed(100 * difference.low, 1)} to {fixed(100 * difference.high, 1)}"
    )
    return _picture(frame.width, frame.height, title, words, [_zero(frame), span, dot])


def difference_axis(limits: Range) -> Markup:
    """The scale under a forest plot, in percentage points."""
    frame = Frame(300, 22, limits, (0, 1), left=16, right=16, top=0, bottom=0)
    parts = [_zero(frame, to=5)]
    for tick in ticks(limits, 5):
        place = _at(frame.across(tick))
        sign = "+" if tick > 0 else ""
        parts.append(
            Markup('<text class="tick" x="{}" y="17" text-anchor="middle">{}{}</text>').format(
                place, sign, fixed(100 * tick, 0)
            )
        )
    return _picture(frame.width, frame.height, "Scale in percentage points", "", parts)


def stacked_bar(parts: Sequence[tuple[str, float]], title: str) -> Markup:
    """Parts of a whole side by side, in the order given; classes `part-0`, `part-1`, ..."""
    total = sum(value for _, value in parts) or 1.0
    width, shapes, x = 960.0, list[Markup](), 0.0
    for index, (name, value) in enumerate(parts):
        length = value / total * width
        shapes.append(
            Markup(
                '<rect class="part-{}" x="{}" y="0" width="{}" height="26"><title>{}</title></rect>'
            ).format(
                index % 6, _at(x), _at(max(length - 1.5, 0.5)), sanitise(f"{name}: {number(value)}")
            )
        )
        x += length
    words = ", ".join(f"{name} {round(100 * value / total)} %" for name, value in parts)
    return _picture(width, 26, title, words, shapes)


def share_bar(realised: float, target: float, largest: float, title: str) -> Markup:
    """A share as a bar, with a mark where it was meant to be."""
    width = 300.0
    scale = 0.9 * width / (largest or 1.0)
    bar = Markup('<rect class="part-0" x="0" y="7" width="{}" height="8" rx="2"/>').format(
        _at(realised * scale)
    )
    mark = Markup('<line class="target" x1="{0}" x2="{0}" y1="3" y2="19"/>').format(
        _at(target * scale)
    )
    words = f"realised {round(100 * realised)} %, target {round(100 * target)} %"
    return _picture(width, 22, title, words, [bar, mark])


def ticks(limits: Range, num: int) -> list[float]:
    """About `num` round numbers within the limits.

    Example:
        ticks((0, 1), 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    """
    low, high = limits
    raw = (high - low) / max(1, num)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * raw)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, decimals) for i in range(first, last + 1)]


def nice_range(curve: Curve) -> Range:
    """A range that holds every trend and most of the single steps and the band, with some air."""
    low = _most([min(p.mean, p.low) for p in curve], min(p.trend for p in curve))
    high = -_most([-max(p.mean, p.high) for p in curve], -max(p.trend for p in curve))
    air = 0.06 * (high - low) or 0.06 * abs(high) or 0.5
    return (0.0 if 0.0 <= low < 0.35 * high else low - air), high + air


def _most(values: list[float], limit: float) -> float:
    """The value that 1 in 20 falls below, but no more than the limit."""
    return min(limit, sorted(values)[len(values) // 20])


def _axes(frame: Frame, num_ticks: int) -> Markup:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    label = Markup('<text class="tick" x="{}" y="{}" text-anchor="{}" dy="0.32em">{}</text>')
    left, right = _at(frame.left), _at(frame.width - frame.right)
    parts: list[Markup] = []
    for tick in ticks(frame.y, num_ticks):
        y = _at(frame.up(tick))
        parts.append(line.format(left, right, y, y))
        parts.append(label.format(_at(frame.left - 8), y, "end", _tick_label(tick)))
    below = _at(frame.height - frame.bottom + 16)
    for tick in ticks(frame.x, max(2, int(frame.width / 80))):
        if tick == int(tick):
            parts.append(label.format(_at(frame.across(tick)), below, "middle", int(tick)))
    return Markup("").join(parts)


def _tick_label(value: float) -> str:
    return f"{value:,.6g}".replace("-", "−")


def _zero(frame: Frame, to: float | None = None) -> Markup:
    x = _at(frame.across(0.0))
    return Markup('<line class="zero" x1="{}" x2="{}" y1="0" y2="{}"/>').format(
        x, x, _at(frame.height if to is None else to)
    )


def _picture(
    width: float, height: float, title: str, words: str, parts: Sequence[Markup]
) -> Markup:
    label = sanitise(f"{title}: {words}" if words else title)
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _at(width), _at(height), label, Markup("").join(parts)
    )


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_at(x)},{_at(y)}" for x, y in pairs)


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
