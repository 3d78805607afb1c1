"""Tool calls out of a model's text, in the forms that open models were taught.

    <tool_call>{"name": ..., "arguments": {...}}</tool_call>    Hermes, Qwen, SmolLM3; repeated
    <tool_call>[{...}, {...}]</tool_call>                       SmolLM2
    {"name": ..., "parameters": {...}}                          Llama 3; several with `;` between
    [{"name": ..., "arguments": {...}}]                         Mistral, its control token left out

The one thing to know: what does not name an offered tool is no call but text, and nothing of it is
lost. Text is shown as it grows until a call might be beginning; from there on it is held back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
"""Llama's mark ahead of a call, where the tokenizer does not hide it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for."""

    name: str
    arguments: str
    """A JSON object, as OpenAI's format carries it: in a string."""


@dataclass(slots=True)
class CallReader:
    """Reads one completion as it grows; however it is cut into pieces, the result is the same.

    Example:
        reader = CallReader({"weather"})
        reader.push('One moment.\\n<tool_call>{"name": "weather", ')  # "One moment."
        reader.push('"arguments": {}}</tool_call>')                  # ""
        reader.finish()                                # "", [ToolCall("weather", "{}")]
    """

    names: Collection[str]
    _held: str = ""
    _shown: bool = field(default=False)
    """Whether anything has been shown: a bare JSON call can only be the whole completion."""

    def push(self, text: str) -> str:
        """Take more text; returns what can be shown now."""
        self._held += text
        if not self._shown and (not self._held.strip() or _may_be_bare(self._held)):
            return ""
        start = self._held.find(OPEN)
        end = start if start >= 0 else len(self._held) - _overlap(self._held, OPEN)
        visible = self._held[:end].rstrip()  # blanks ahead of a call belong to it
        self._held = self._held[len(visible) :]
        self._shown = self._shown or bool(visible)
        return visible

    def finish(self) -> tuple[str, list[ToolCall]]:
        """What is left to show, and the calls."""
        if not self._shown and (calls := _bare(self._held, self.names)):
            return "", calls
        rest, calls = _tagged(self._held, self.names)
        return (rest if not calls or rest.strip() else ""), calls


def _may_be_bare(text: str) -> bool:
    """Whether a completion that begins like this could be nothing but calls in JSON."""
    text = text.lstrip()
    return text.startswith(("{", "[", PYTHON_TAG)) or PYTHON_TAG.startswith(text)


def _overlap(text: str, mark: str) -> int:
    """Length of the longest beginning of `mark` that `text` ends with."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)


def _tagged(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """What stands around the calls between tags, and the calls."""
    rest = ""
    calls: list[ToolCall] = []
    place = 0
    while (start := text.find(OPEN, place)) >= 0:
        inside = start + len(OPEN)
        value, end = _value(text, inside)
        found = _listed(value, names)
        if found and (text.startswith((CLOSE, OPEN), end) or end == len(text)):
            calls += found
            rest += text[place:start].rstrip()
            place = end + len(CLOSE) if text.startswith(CLOSE, end) else end
        else:
            rest += text[place:inside]
            place = inside
    return rest + text[place:], calls


def _bare(text: str, names: Collection[str]) -> list[ToolCall]:
    """The calls of a completion that is nothing else; none if any part is something else."""
    text = text.strip().removeprefix(PYTHON_TAG)
    calls: list[ToolCall] = []
    place = 0
    while place < len(text):
        value, end = _value(text, place)
        found = _listed(value, names)
        if not found or text[end : end + 1] not in ("", ";"):
            return []
        calls += found
        place = end + 1
    return calls


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)
_blank = re.compile(r"\s*")


def _value(text: str, start: int) -> tuple[object, int]:
    """The JSON value that begins there, None if there is none, and where what follows begins."""
    try:
        value, end = _decoder.raw_decode(text, _skip(text, start))
    except (ValueError, RecursionError):
        return None, start
    return value, _skip(text, end)


def _skip(text: str, start: int) -> int:
    blank = _blank.match(text, start)
    assert blank is not None
    return blank.end()


def _listed(value: object, names: Collection[str]) -> list[ToolCall]:
    """The calls that a JSON value says: an object is one, a list is several; all or none."""
    entries = cast(list[object], value) if isinstance(value, list) else [value]
    calls: list[ToolCall] = []
    for entry in entries:
        if not isinstance(entry, dict):
            return []
        fields = cast(dict[str, Any], entry)
        arguments = fields.get("arguments", fields.get("parameters", {}))
        if isinstance(arguments, str):
            arguments, _ = _value(arguments, 0)
        if fields.get("name") not in names or not isinstance(arguments, dict):
            return []
        calls.append(ToolCall(fields["name"], json.dumps(arguments, ensure_ascii=False)))
    return calls
