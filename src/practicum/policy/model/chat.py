"""A chat, with tools and calls, as the model's own template writes it.

The one thing to know: what a message *says* can never act as a control token, wherever it stands in
a message or a tool. Control strings become numbered marks before the template sees them, and plain
text afterwards; the template may move, repeat or drop what holds them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from practicum.errors import UsageError

Json = Mapping[str, Any]
Apply = Callable[[Sequence[Json], Sequence[Json] | None], str]
"""The template: messages and tools to text."""
Encode = Callable[[str, bool], list[int]]
"""Text to token ids, and whether control tokens in it act."""

PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Characters that mean nothing in Unicode, so that they may mark what we like"""


def render_chat(
    messages: Sequence[Json],
    tools: Sequence[Json] | None,
    *,
    special: re.Pattern[str] | None,
    apply: Apply,
    encode: Encode,
    source: str = "the chat template",
) -> list[int]:
    """Token ids of the prompt that makes the model speak next.

    `special` finds control strings; `source` names the template in errors. Raises UsageError if
    the template refuses or fails, whatever way it fails: it is a program by a stranger.
    """
    try:
        mark = _unused_character(_strings([messages, tools]))
    except RecursionError:
        raise UsageError("the chat or its tools are nested too deeply; nest them less") from None
    quoted: list[str] = []

    def quote(match: re.Match[str]) -> str:
        quoted.append(match.group())
        return f"{mark}{len(quoted) - 1}{mark}"

    def quote_all(text: str) -> str:
        return special.sub(quote, text) if special else text

    safe_messages: list[Json] = _mapped(messages, quote_all)
    safe_tools: list[Json] | None = _mapped(tools, quote_all)
    try:
        text = apply(safe_messages, safe_tools)
    except UsageError:
        raise
    except Exception as error:
        roles = [message.get("role") for message in messages]
        raise UsageError(f"{source} refuses the roles {roles}: {_reason(error)}") from error
    marked = {str(number): content for number, content in enumerate(quoted)}
    token_ids: list[int] = []
    for index, piece in enumerate(re.split(f"{mark}([0-9]+){mark}", text)):
        if index % 2 == 0:
            token_ids += encode(piece, True)
        elif piece in marked:
            token_ids += encode(marked[piece], False)
        else:
            written = f"U+{ord(mark):04X} {piece:.9} U+{ord(mark):04X}"
            raise UsageError(
                f"{source} writes {written}, which stands for no text of the chat; "
                "take these characters out of the template"
            )
    return token_ids


def _reason(error: Exception) -> str:
    """What a template says itself; else the kind of its failure too. Printable in any case."""
    from jinja2 import TemplateError  # here, because it is slow to import

    said = isinstance(error, TemplateError) and str(error)
    reason = said or f"{type(error).__name__}: {error}".removesuffix(": ")
    return reason.encode("utf-8", "backslashreplace").decode()


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The same JSON with every string changed, names of fields included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        fields = cast(Mapping[str, Any], value)
        return {change(name): _mapped(inner, change) for name, inner in fields.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in cast(Sequence[Any], value)]
    return value


def _strings(value: Any) -> list[str]:
    """Every string in some JSON."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    _mapped(value, keep)
    return found


def _unused_character(texts: Iterable[str]) -> str:
    """A private-use character that occurs in none of `texts`. Raises UsageError without one."""
    used = set("".join(texts))
    for code in itertools.chain(*PRIVATE_USE):
        if chr(code) not in used:
            return chr(code)
    raise UsageError("the chat holds every private-use character of Unicode; leave one out")
