"""A chat, with tools and calls, as the model's own template writes it.

The one thing to know: what a message *says* can never act as a control token, wherever it stands in
a message or a tool. Control strings become numbered marks before the template sees them, and plain
text afterwards; the template may move, repeat or drop what holds them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from practicum.errors import UsageError

Json = Mapping[str, Any]
Apply = Callable[[Sequence[Json], Sequence[Json] | None], str]
"""The template: messages and tools to text."""
Encode = Callable[[str, bool], list[int]]
"""Text to token ids, and whether control tokens in it act."""


def render_chat(
    messages: Sequence[Json],
    tools: Sequence[Json] | None,
    *,
    special: re.Pattern[str] | None,
    apply: Apply,
    encode: Encode,
) -> list[int]:
    """Token ids of the prompt that makes the model speak next.

    `special` finds control strings. Raises UsageError if the template refuses.
    """
    from jinja2 import TemplateError  # here, because it is slow to import

    mark = _unused_character(_strings([messages, tools]))
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
    except (TemplateError, TypeError, KeyError) as error:  # templates add what need not be there
        roles = [message.get("role") for message in messages]
        raise UsageError(f"the chat template refuses the roles {roles}: {error}") from error
    token_ids: list[int] = []
    for index, piece in enumerate(re.split(f"{mark}(\\d+){mark}", text)):
        is_mark = index % 2 == 1
        token_ids += encode(quoted[int(piece)], False) if is_mark else encode(piece, True)
    return token_ids


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
    """A private-use character that occurs in none of `texts`."""
    used = set("".join(texts))
    return next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in used)
