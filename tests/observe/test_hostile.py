"""Whatever a model writes, nothing of it acts on a terminal and nothing hides from a reader."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.observe.hostile import excerpt, one_line, sanitise


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x07", None),
        ("\x9b2J", "⟨U+009B⟩2J"),
        ("50\rpaid 9999", "50␍paid 9999"),
        ("abc\x08\x08\x7f", "abc␈␈␡"),
        ("user\u202egnp.exe", "user⟨U+202E⟩gnp.exe"),
        ("zero\u200bwidth\ufeff", "zero⟨U+200B⟩width⟨U+FEFF⟩"),
        ("tag\U000e0041", "tag⟨U+E0041⟩"),
        ("line\u2028sep", "line⟨U+2028⟩sep"),
        ("lone\ud800", "lone⟨U+D800⟩"),
        ("\u3164blank", "⟨U+3164⟩blank"),
    ],
)
def test_what_would_act_or_hide_is_spelled_out(hostile: str, shown: str | None) -> None:
    result = sanitise(hostile)
    assert shown is None or result == shown
    assert "\x1b" not in result
    assert "\x07" not in result


@pytest.mark.parametrize(
    "text",
    [
        "plain\n\ttext",
        "naïve Ünïcode",
        "日本語 中文",
        "👩\u200d🔬 works",
        "می\u200cخواهم",
        "3 × 4 ≤ 12",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert sanitise(text) == text


def test_a_joiner_that_joins_nothing_is_shown() -> None:
    assert sanitise("a \u200d b") == "a ⟨U+200D⟩ b"
    assert sanitise("\u200d") == "⟨U+200D⟩"


@given(st.text())
def test_no_control_or_format_character_is_left(text: str) -> None:
    result = sanitise(text)
    left = {c for c in result if unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    assert left <= {"\n", "\t", "\u200c", "\u200d"}
    assert sanitise(result) == result


def test_long_text_is_cut_with_a_count() -> None:
    assert excerpt("x" * 1000, 10) == "x" * 10 + "… (990 more characters)"
    assert excerpt("short", 10) == "short"
    assert one_line("a\nb\tc", 10) == "a⏎b⇥c"
    assert one_line("x" * 50, 5) == "xxxx…"
