"""Prompts for servers whose tokens nobody here knows: text, carried through as code points.

`Policy` speaks in token ids. Where only the server has a tokenizer, a "token" is a character: a
prompt is the JSON of its messages, a completion the characters of its text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from practicum.errors import UsageError
from practicum.types import Message, Role


def write_messages(messages: Sequence[Message]) -> list[int]:
    """Raises UsageError if the messages are neither one `text` nor a chat."""
    roles = [message.role for message in messages]
    if not messages or ("text" in roles and len(roles) > 1):
        raise UsageError(f"a prompt is either one `text` message or a chat, not {roles}")
    return as_ids(json.dumps([[message.role, message.content] for message in messages]))


def read_messages(prompt_ids: Sequence[int]) -> list[Message]:
    """The messages that `write_messages` wrote."""
    try:
        pairs: list[tuple[Role, str]] = json.loads("".join(map(chr, prompt_ids)))
        return [Message(role, content) for role, content in pairs]
    except (ValueError, TypeError) as error:
        raise UsageError(
            "this policy has no tokenizer and takes only prompts that it rendered itself"
        ) from error


def as_ids(text: str) -> list[int]:
    return [ord(character) for character in text]
