"""Text in and out of token ids, by the model folder's own tokenizer.

The one thing to know: what a message *says* can never act as a control token. A tool's output that
contains `<|im_end|>` is encoded as those ten characters; only the chat template ends turns.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from practicum.errors import UsageError
from practicum.policy.model.chat import Json, render_chat
from practicum.policy.model.family import read_json
from practicum.policy.model.token_bytes import TokenBytes
from practicum.types import Message

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
        self._tokenizer = _load(folder)
        # A tokenizer changes its own settings while encoding, and two threads use this one.
        self._lock = threading.Lock()
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        self.largest_id = max(vocabulary.values())
        self.eos_id: int | None = self._tokenizer.eos_token_id
        """The one that training appends; None if the tokenizer has none."""
        self.eos_ids = frozenset(_end_ids(folder, self._tokenizer, vocabulary))
        """All that end a completion."""
        specials: list[str] = sorted(_special_strings(self._tokenizer), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, specials))) if specials else None
        self._bytes = TokenBytes(self._tokenizer)
        added: list[int] = self._tokenizer("")["input_ids"]
        self._start = [i for i in added[:1] if i == self._tokenizer.bos_token_id]
        """What the tokenizer puts before a text: its start token, or nothing."""

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
            text: str = self._tokenizer.decode(
                list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text

    def pieces(self) -> list[str]:
        """The text of every token id; control tokens by their names."""
        names: list[str] = self._tokenizer.convert_ids_to_tokens(range(self.largest_id + 1))
        return [self.decode([i]) or name for i, name in enumerate(names)]

    def _encode(self, text: str, *, act: bool) -> list[int]:
        with self._lock:
            token_ids: list[int] = self._tokenizer.encode(
                text, add_special_tokens=False, split_special_tokens=not act
            )
        return token_ids

    def render_chat(
        self, messages: Sequence[Json], tools: Sequence[Json] | None = None
    ) -> list[int]:
        """Token ids of a chat, with tools where there are any, by the model's template."""
        if not self._tokenizer.chat_template:
            raise UsageError(
                f"the tokenizer in {self.folder} has no chat template; use one `text` message, or "
                "an instruction-tuned model"
            )
        return render_chat(
            messages,
            tools,
            special=self._special,
            apply=self._apply,
            encode=lambda text, act: self._encode(text, act=act),
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; of a control token, those of its name."""
        return self._bytes.of(token_id)

    def _apply(self, messages: Sequence[Json], tools: Sequence[Json] | None) -> str:
        return self._tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True
        )


def _load(folder: Path) -> Any:
    if not any((folder / f"{name}.json").exists() for name in ("tokenizer", "tokenizer_config")):
        raise UsageError(
            f"{folder} has no tokenizer.json and no tokenizer_config.json; copy them from the "
            "model the weights come from"
        )
    try:
        return AutoTokenizer.from_pretrained(  # pyright: ignore[reportUnknownMemberType]
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # many types, from many tokenizer formats
        raise UsageError(f"the tokenizer in {folder} does not load: {error}") from error


def _special_strings(tokenizer: Any) -> set[str]:
    added: Mapping[int, Any] = tokenizer.added_tokens_decoder
    return {str(token.content) for token in added.values() if token.special}


def _end_ids(folder: Path, tokenizer: Any, vocabulary: Mapping[str, int]) -> set[int]:
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        named = read_json(path).get("eos_token_id") if path.exists() else None
        ends.update(named if isinstance(named, list) else [named] if named is not None else [])  # pyright: ignore[reportUnknownArgumentType]
    if tokenizer.eos_token_id is not None:
        ends.add(tokenizer.eos_token_id)
    special = _special_strings(tokenizer)
    return ends | {vocabulary[token] for token in END_TOKENS if token in special}
