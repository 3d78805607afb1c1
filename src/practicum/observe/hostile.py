"""Text that a model wrote, made harmless to look at: nothing in it acts, nothing in it hides.

Terminal control codes, bidirectional overrides and invisible characters are shown as what they are
instead of being obeyed or dropped, since a reader who judges an attempt must see them.
"""

from __future__ import annotations

import re
import unicodedata

_ALWAYS_SHOWN = frozenset("\u2028\u2029\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Line separators, and characters that are letters or marks by class but draw nothing."""
_NEEDED = frozenset("\u200c\u200d")
"""The joiners, which some scripts and emoji cannot do without: kept between visible letters."""
_SUSPECT = re.compile(r"[^\n\t\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff\u0370-\u058f\u4e00-\u9fff]")


def sanitise(text: str) -> str:
    """The text with every control, bidirectional, invisible and surrogate character spelled out.

    Control codes become their pictures, all else its code point; line breaks and tabs stay.

    Example:
        sanitise("a\\x1b[31mb\\u202ec") == "a␛[31mb⟨U+202E⟩c"
    """
    return _SUSPECT.sub(_show, text)


def excerpt(text: str, limit: int) -> str:
    """At most `limit` characters of sanitised text, saying how many are left out."""
    if len(text) <= limit:
        return sanitise(text)
    return f"{sanitise(text[:limit])}… ({len(text) - limit:,} more characters)"


def one_line(text: str, limit: int) -> str:
    """Sanitised, with breaks and tabs shown as ⏎ and ⇥, cut to `limit` characters."""
    line = text.replace("\n", "⏎").replace("\t", "⇥")
    return sanitise(line if len(line) <= limit else line[: limit - 1] + "…")


def _show(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if character in _NEEDED and _between_visible(match):
        return character
    if character in _ALWAYS_SHOWN or unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co"):
        return f"⟨U+{code:04X}⟩"
    return character


def _between_visible(match: re.Match[str]) -> bool:
    before = match.string[: match.start()][-1:]
    after = match.string[match.end() :][:1]
    return all(side and unicodedata.category(side)[0] in "LMS" for side in (before, after))
