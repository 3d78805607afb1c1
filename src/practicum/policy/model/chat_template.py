"""A model's chat template, rendered as transformers renders it, which is how models were trained.

A template is a program by a stranger: it runs in Jinja's sandbox and sees plain JSON alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

Json = Mapping[str, Any]

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names for a message's reasoning; templates read the first or the second."""
LARGEST_BITS = 1 << 14
"""Of a product or power of whole numbers"""
LARGEST_LENGTH = 1 << 24
"""Of repeated text, in characters, or of a repeated list"""


class ChatTemplate:
    """One template, compiled.

    Example:
        ChatTemplate(text, {"eos_token": "</s>"}).render([{"role": "user", "content": "hi"}], None)
    """

    def __init__(self, text: str, roles: Mapping[str, str]) -> None:
        """`roles` are the tokens that the template may name.

        Raises jinja2.TemplateError, or what Python says to a template's code (SyntaxError, ...).
        """
        self._roles = roles
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
        )
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(text, globals=GLOBALS)

    def render(self, messages: Sequence[Json], tools: Sequence[Json] | None) -> str:
        """The prompt that makes the model speak next.

        Raises jinja2.TemplateError, or whatever a template's own mistakes raise.
        """
        return self._template.render(
            {
                **self._roles,
                "messages": [_plain(message) for message in messages],
                "tools": tools,
                "documents": None,
                "add_generation_prompt": True,
            }
        )


def _plain(message: Json) -> dict[str, Any]:
    """Without empty fields, which templates would write as `None`; reasoning by both its names."""
    given = {key: value for key, value in message.items() if value is not None}
    reasoning = next((given[name] for name in REASONING if name in given), None)
    if reasoning is None:
        return given
    return {"thinking": reasoning, **given, "reasoning_content": reasoning}


class _Sandbox(ImmutableSandboxedEnvironment):
    """Without products so large that computing one holds up every thread of the process."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "**", int(), int():
                size, limit = left.bit_length() * abs(right), LARGEST_BITS
            case "*", int(), int():
                size, limit = left.bit_length() + right.bit_length(), LARGEST_BITS
            case ("*", int(times), (str() | bytes() | list() | tuple()) as many) | (
                "*",
                (str() | bytes() | list() | tuple()) as many,
                int(times),
            ):
                size, limit = len(many) * times, LARGEST_LENGTH
            case _:
                size, limit = 0, 0
        if size > limit:
            raise SecurityError(f"the result of `{operator}` in a chat template is too large")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks what the model says; here it is only a block."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` in templates: makes objects, and has nothing else of a type."""

    def __call__(self, *args: Any, **fields: Any) -> dict[Any, Any]:
        return dict(*args, **fields)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` in templates, without names that mean something to Python."""

    def __init__(*args: Any, **fields: Any) -> None:  # so that a field may be called `self`
        own, *given = args
        Namespace.__init__(own)
        for name, value in dict(*given, **fields).items():
            own[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace in a chat template may hold no {name!r}")
        super().__setitem__(name, value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


GLOBALS: dict[str, Any] = {
    "raise_exception": _raise,
    "strftime_now": _now,
    "dict": _Dict(),
    "namespace": _Namespace,
}
"""What a template can call."""
