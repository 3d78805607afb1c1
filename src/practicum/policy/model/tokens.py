"""Text in and out of token ids, by the model folder's own tokenizer.

The one thing to know: what a message *says* can never act as a control token. A tool's output that
contains `<|im_end|>` is encoded as those ten characters; only the chat template ends turns.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.errors import UsageError
from practicum.policy.model.chat import Json, render_chat
from practicum.policy.model.family import read_json
from practicum.policy.model.token_bytes import TokenBytes
from practicum.policy.model.tokenizer_files import failing_as, read_tokenizer
from practicum.types import Message

if TYPE_CHECKING:
    from practicum.policy.model.chat_template import ChatTemplate

END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)
"""Special tokens that end a turn in the wild; a folder's configuration often names only one."""


class Tokens:
    """A tokenizer: renders prompts, decodes completions, knows every token that ends one."""

    def __init__(self, folder: Path) -> None:
        """Load from a Hugging Face folder. No network, no remote code. Raises UsageError."""
        self.folder = folder
        loaded = read_tokenizer(folder)
        self._rules, self._roles, self._templates = loaded.rules, loaded.roles, loaded.templates
        self._template_files = loaded.template_files
        # Encoding changes the tokenizer's settings, and two threads use this one.
        self._lock = threading.Lock()
        self._compiled: dict[str, ChatTemplate] = {}
        vocabulary = self._rules.get_vocab()
        if not vocabulary:
            raise UsageError(f"the tokenizer in {folder} has no tokens; copy the model's own")
        self.largest_id = max(vocabulary.values())
        self.eos_id = self._id_of("eos_token")
        """The one that training appends; None if the tokenizer has none."""
        added = self._rules.get_added_tokens_decoder().values()
        control = sorted((token.content for token in added if token.special), key=len, reverse=True)
        ends = {vocabulary[one] for one in END_TOKENS if one in control}
        if self.eos_id is not None:
            ends.add(self.eos_id)
        self.eos_ids = frozenset(_declared_ends(folder) | ends)
        """All that end a completion."""
        self._control = re.compile("|".join(map(re.escape, control))) if control else None
        with failing_as(f"the tokenizer {folder / 'tokenizer.json'} does not encode"):
            first = self._rules.encode("").ids[:1]
        self._start = first if first == [self._id_of("bos_token")] else []
        """What the tokenizer puts before a text: its start token, or nothing."""

    def _id_of(self, role: str) -> int | None:
        return self._rules.token_to_id(self._roles[role]) if role in self._roles else None

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt that makes the model speak next.

        One `text` message is encoded as it stands, and its author may write control tokens into it;
        anything else goes through the chat template. Raises UsageError where neither is possible.
        """
        if not messages:
            raise UsageError("a prompt needs at least one message")
        if any(message.role == "text" for message in messages):
            if len(messages) > 1:
                roles = [message.role for message in messages]
                raise UsageError(
                    f"a prompt is either one `text` message or a chat, not both: {roles}"
                )
            return [*self._start, *self._encode(messages[0].content, act=True)]
        return self.render_chat([{"role": m.role, "content": m.content} for m in messages])

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text: nothing is added, and control tokens in it do not act."""
        return self._encode(text, act=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, control tokens left out, spaces as they are."""
        with self._lock:
            return self._rules.decode(list(token_ids), skip_special_tokens=True)

    def pieces(self) -> list[str]:
        """The text of every token id; control tokens by their names."""
        ids = range(self.largest_id + 1)
        return [self.decode([i]) or self._rules.id_to_token(i) or "" for i in ids]

    def _encode(self, text: str, *, act: bool) -> list[int]:
        with self._lock:
            if self._rules.encode_special_tokens == act:
                self._rules.encode_special_tokens = not act
            with failing_as(f"the tokenizer in {self.folder} does not encode {text!a:.60}"):
                text.encode()  # says where half a character stands; the library does not
                return self._rules.encode(text, add_special_tokens=False).ids

    def render_chat(
        self, messages: Sequence[Json], tools: Sequence[Json] | None = None
    ) -> list[int]:
        """Token ids of a chat, with tools where there are any, by the model's template."""
        if not messages:
            raise UsageError("a chat needs at least one message")
        name = self._name_for(tools)
        return render_chat(
            messages,
            tools,
            special=self._control,
            apply=functools.partial(self._apply, self._templates[name]),
            encode=lambda text, act: self._encode(text, act=act),
            source=f"the chat template {name!r} in {self._template_files[name]}",
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; of a control token, those of its name."""
        return self._bytes.of(token_id)

    @functools.cached_property
    def _bytes(self) -> TokenBytes:
        return TokenBytes(self._rules)

    def _apply(self, text: str, messages: Sequence[Json], tools: Sequence[Json] | None) -> str:
        from practicum.policy.model.chat_template import ChatTemplate  # jinja2 is slow to import

        if text not in self._compiled:
            self._compiled[text] = ChatTemplate(text, self._roles)
        return self._compiled[text].render(messages, tools)

    def _name_for(self, tools: Sequence[Json] | None) -> str:
        named = self._templates
        if tools is not None and named.get("tool_use"):
            return "tool_use"
        if named.get("default"):
            return "default"
        has = f"only chat templates for {', '.join(sorted(named))}" if named else "no chat template"
        raise UsageError(
            f"the tokenizer in {self.folder} has {has}; use one `text` message, or an "
            "instruction-tuned model"
        )


def _declared_ends(folder: Path) -> set[int]:
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        named = read_json(path).get("eos_token_id") if path.exists() else None
        ends.update(named if isinstance(named, list) else [named] if named is not None else [])  # pyright: ignore[reportUnknownArgumentType]
    return ends
