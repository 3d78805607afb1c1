"""A chat's messages and tools: checked, brought to one form, and turned into a prompt.

The one thing to know: tools work with every model. Where the policy's chat template knows tools,
it writes them (`RendersChat`); where it does not, they are described in words, in the form that
`tool_calls` reads back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from practicum.endpoint.refusals import Refusal
from practicum.endpoint.streaming import Json, RendersChat
from practicum.errors import did_you_mean
from practicum.protocols import Policy
from practicum.types import Message, Role

ROLES = ("system", "developer", "user", "assistant", "tool")
KNOWN_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
ECHOED_FIELDS = ("refusal", "annotations", "audio", "function_call", "reasoning_content")
"""Of answers that clients send back; they are no part of what the model reads."""

IN_WORDS = """You may call functions. These are their signatures, as JSON:
<tools>
{tools}
</tools>
To call one, answer with a JSON object of its name and arguments, between tags:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


def read_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages as a chat template takes them. Raises Refusal, naming the message."""
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def read_tools(tools: Sequence[Any]) -> list[Json]:
    """Checked, and otherwise as they came: models were trained on this very form."""
    for index, tool in enumerate(tools):
        match tool:
            case {"type": "function", "function": {"name": str(name), **rest}} if name:
                if not isinstance(rest.get("parameters") or {}, dict):
                    where = f"tools[{index}].function.parameters"
                    raise Refusal(f"`{where}` must be a JSON schema", param="tools")
            case _:
                raise Refusal(
                    f'`tools[{index}]` must be {{"type": "function", "function": {{"name": ...}}}}',
                    param="tools",
                )
    return list(tools)


def render(policy: Policy, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
    """Token ids of the prompt. Raises UsageError where the model's chat template refuses."""
    if isinstance(policy, RendersChat):
        prompt = policy.render_chat(messages, tools or None)
        if not tools or prompt != policy.render_chat(messages, None):
            return prompt
        # the template passes over tools: this model was never shown any in a form of its own
    return policy.render(in_words(messages, tools))


def in_words(messages: Sequence[Json], tools: Sequence[Json]) -> list[Message]:
    """The same chat with tools, calls and results written out as text."""
    told: list[Message] = []
    for message in messages:
        content: str = message["content"]
        calls = [
            f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
            for call in message.get("tool_calls", ())
        ]
        if message["role"] == "tool":
            told.append(Message("user", f"<tool_response>\n{content}\n</tool_response>"))
        else:
            text = "\n".join([content, *calls] if content else calls)
            told.append(Message(cast(Role, message["role"]), text))
    if tools:
        described = IN_WORDS.format(
            tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        )
        if told and told[0].role == "system":
            told[0] = Message("system", f"{told[0].content}\n\n{described}")
        else:
            told.insert(0, Message("system", described))
    return told


def _message(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Refusal(f"`{where}` must be an object", param="messages")
    fields = {
        name: value
        for name, value in cast(dict[str, Any], given).items()
        if value is not None and name not in ECHOED_FIELDS
    }
    for name in fields:
        if name not in KNOWN_FIELDS:
            hint = did_you_mean(name, KNOWN_FIELDS)
            raise Refusal(
                f"unknown field `{where}.{name}`.{hint}", param="messages", code="unknown_parameter"
            )
    role = fields.get("role")
    if role not in ROLES:
        wanted = ", ".join(ROLES)
        raise Refusal(f"`{where}.role` must be one of {wanted}, not {role!r}", param="messages")
    if "content" not in fields and not (role == "assistant" and "tool_calls" in fields):
        raise Refusal(f"`{where}.content` is missing", param="messages")
    if "tool_calls" in fields and role != "assistant":
        raise Refusal(f"`{where}.tool_calls` belongs to an assistant", param="messages")
    fields["role"] = "system" if role == "developer" else role
    fields["content"] = _text(fields.get("content", ""), f"{where}.content")
    if "tool_calls" in fields:
        fields["tool_calls"] = _calls(fields["tool_calls"], f"{where}.tool_calls")
    return fields


def _text(content: object, where: str) -> str:
    """A string, or the text of a list of parts."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in cast(list[object], content) if isinstance(content, list) else [content]:
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": str(kind)} if kind != "text":
                raise Refusal(f"`{where}`: the model reads text only, no {kind}", param="messages")
            case _:
                raise Refusal(f"`{where}` must be a string or a list of parts", param="messages")
    return "".join(texts)


def _calls(calls: object, where: str) -> list[Json]:
    """Earlier calls; their arguments, JSON in a string on the wire, become an object."""
    read: list[Json] = []
    for call in cast(list[object], calls) if isinstance(calls, list) else [calls]:
        match call:
            case {"function": {"name": str(name), "arguments": str(text)}}:
                try:
                    arguments = msgspec.json.decode(text or "{}", type=dict[str, Any])
                except msgspec.MsgspecError as error:
                    message = f"`{where}`: the arguments of {name!r} are no JSON object: {error}"
                    raise Refusal(message, param="messages") from None
                read.append(
                    {"type": "function", "function": {"name": name, "arguments": arguments}}
                )
            case _:
                raise Refusal(
                    f"`{where}` must be a list of calls with a function's name and arguments",
                    param="messages",
                )
    return read
