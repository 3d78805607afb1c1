"""Charts: well-formed, described in words, inside their frame, and escaping what they are given."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.observe import svg
from practicum.observe.curves import Point
from practicum.statistics import PairedDifference

values = st.floats(-1e6, 1e6)


@st.composite
def curves(draw: st.DrawFn) -> tuple[Point, ...]:
    means = draw(st.lists(values, min_size=1, max_size=30))
    spread = draw(st.floats(0, 100))
    return tuple(Point(i, m, m, m - spread, m + spread) for i, m in enumerate(means))


@given(curves())
def test_any_curve_draws_inside_its_picture(curve: tuple[Point, ...]) -> None:
    picture = ElementTree.fromstring(svg.line_chart(curve, "Reward", size=(300, 150)))
    for line in picture.iter("polyline"):
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 300
            assert 0 <= y <= 150
    assert picture.attrib["role"] == "img"
    assert picture.attrib["aria-label"].startswith(f"Reward: {len(curve)} steps, from ")


def test_a_curve_rises_on_the_page_when_its_values_rise() -> None:
    curve = tuple(Point(i, i / 10, i / 10, i / 10 - 0.1, i / 10 + 0.1) for i in range(5))
    picture = ElementTree.fromstring(svg.line_chart(curve, "x", size=(300, 150)))
    (trend,) = (line for line in picture.iter("polyline") if line.attrib["class"] == "trend")
    heights = [float(pair.split(",")[1]) for pair in trend.attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)
    assert len(list(picture.iter("polygon"))) == 1


def test_a_curve_without_spread_has_no_band() -> None:
    curve = tuple(Point(i, 0.5, 0.5, 0.5, 0.5) for i in range(3))
    assert "polygon" not in svg.line_chart(curve, "x", size=(300, 150))


@pytest.mark.parametrize(
    ("low", "high", "kind"), [(0.1, 0.3, "gain"), (-0.3, -0.1, "loss"), (-0.1, 0.1, "unsure")]
)
def test_a_difference_is_coloured_by_what_it_excludes(low: float, high: float, kind: str) -> None:
    change = PairedDifference((low + high) / 2, low, high, 50, 0.01)
    picture = ElementTree.fromstring(svg.difference_plot(change, (-0.5, 0.5), "addition"))
    assert f"span {kind}" in {line.attrib["class"] for line in picture.iter("line")}
    assert f"95 % interval from {'−' if low < 0 else ''}" in picture.attrib["aria-label"]


def test_an_unlimited_interval_ends_at_the_frame() -> None:
    change = PairedDifference(0.0, -float("inf"), float("inf"), 1, 1.0)
    picture = ElementTree.fromstring(svg.difference_plot(change, (-0.5, 0.5), "x"))
    (span,) = (line for line in picture.iter("line") if line.attrib["class"].startswith("span"))
    assert (span.attrib["x1"], span.attrib["x2"]) == ("16", "284")


def test_names_are_escaped_and_sanitised() -> None:
    name = '"><script>alert(1)</script>\u202e'
    for picture in (
        svg.stacked_bar([(name, 1.0), ("b", 2.0)], name),
        svg.share_bar(0.2, 0.3, 0.3, name),
        svg.line_chart((Point(0, 1, 1, 1, 1),), name, size=(300, 150)),
    ):
        assert "<script" not in picture
        assert "\u202e" not in picture
        assert (
            '"><script>alert(1)</script>⟨U+202E⟩'
            in ElementTree.fromstring(picture).attrib["aria-label"]
        )


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 8))
def test_ticks_are_round_and_inside(low: float, span: float, num: int) -> None:
    found = svg.ticks((low, low + span), num)
    assert len(found) <= 2 * num + 2
    slack = 1e-8 * max(abs(low), span)
    assert all(low - slack <= tick <= low + span + slack for tick in found)


def test_ticks_of_the_unit_interval() -> None:
    assert svg.ticks((0, 1), 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]


def test_parts_fill_the_bar() -> None:
    bar = svg.stacked_bar([("rollout", 3.0), ("train", 1.0)], "Time")
    assert re.findall(r'width="([\d.]+)"', bar) == ["718.5", "238.5"]
    assert "rollout 75 %, train 25 %" in bar
