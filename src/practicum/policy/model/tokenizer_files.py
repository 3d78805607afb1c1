"""The tokenizer of a Hugging Face folder: its rules, the tokens that have roles, chat templates.

The one thing to know: `tokenizer.json` is the tokenizer, whatever class the folder names. It is
what its maker saved, and what grammars are compiled against; transformers builds some anew by the
name of a class, which may split text otherwise. Only a folder without it needs transformers, which
takes seconds to import and converts older files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer

from practicum.errors import UsageError
from practicum.policy.model.family import Json, read_json

ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""Tokens that a tokenizer may have; folders name others, whose keys end in `_token` too."""


@dataclass(frozen=True, slots=True)
class FolderTokenizer:
    """What a folder says about its tokenizer."""

    rules: Tokenizer
    """Without truncation and padding"""
    roles: Mapping[str, str]
    """`eos_token` -> `<|im_end|>`, ...; templates may use them"""
    templates: Mapping[str, str]
    """Name -> template of chats; `default`, and `tool_use` for chats with tools"""


def read_tokenizer(folder: Path) -> FolderTokenizer:
    """No network, no remote code. Raises UsageError if there is none or it does not load."""
    if not any((folder / f"{name}.json").exists() for name in ("tokenizer", "tokenizer_config")):
        raise UsageError(
            f"{folder} has no tokenizer.json and no tokenizer_config.json; copy them from the "
            "model the weights come from"
        )
    path = folder / "tokenizer.json"
    if not path.exists():
        return _converted(folder)
    settings = _optional(folder / "tokenizer_config.json")
    try:
        rules = Tokenizer.from_file(str(path))
        roles = _add_tokens(rules, folder, settings)
    except UsageError:
        raise
    except Exception as error:  # the library raises plain ones; others for entries of other types
        raise UsageError(f"the tokenizer in {folder} does not load: {error}") from error
    rules.no_truncation()
    rules.no_padding()
    return FolderTokenizer(rules, roles, _templates(folder, settings.get("chat_template")))


def _converted(folder: Path) -> FolderTokenizer:
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(  # pyright: ignore[reportUnknownMemberType]
            str(folder), local_files_only=True, trust_remote_code=False
        )
        rules: Tokenizer = loaded.backend_tokenizer
    except Exception as error:  # many types, from many tokenizer formats
        raise UsageError(f"the tokenizer in {folder} does not load: {error}") from error
    rules.no_truncation()
    rules.no_padding()
    return FolderTokenizer(rules, loaded.special_tokens_map, _named(loaded.chat_template))


def _optional(path: Path) -> Json:
    return read_json(path) if path.exists() else {}


def _add_tokens(rules: Tokenizer, folder: Path, settings: Json) -> dict[str, str]:
    """Add what the folder declares besides `tokenizer.json`; the tokens that have roles.

    A token that has a role is a control token, whatever `tokenizer.json` says.
    """
    present = rules.get_added_tokens_decoder()
    if "added_tokens_decoder" in settings:
        roles, others = _control_tokens(rules, settings)
        declared = {int(i): _token(one) for i, one in settings["added_tokens_decoder"].items()}
    else:  # older folders say the same in two files of their own
        settings = settings | _optional(folder / "special_tokens_map.json")
        roles, others = _control_tokens(rules, settings)
        older = _optional(folder / "added_tokens.json")
        control = {*roles.values(), *others}
        declared = {i: AddedToken(token, special=token in control) for token, i in older.items()}
        declared |= present
    tokens = [declared[i] for i in sorted(declared)]
    known = {token.content for token in (*tokens, *present.values())}
    wanted = dict.fromkeys((*roles.values(), *others))
    tokens += [AddedToken(token, special=True) for token in wanted if token not in known]
    for token in tokens:
        token.special = token.special or token.content in roles.values()
    rules.add_tokens(tokens)
    return roles


def _control_tokens(rules: Tokenizer, settings: Json) -> tuple[dict[str, str], list[str]]:
    """Those that have roles, and others."""
    named: dict[str, Any] = {role: settings.get(role) for role in ROLES}
    if named["pad_token"] is None and rules.padding:
        named["pad_token"] = rules.padding["pad_token"]
    named |= {k: v for k, v in settings.items() if k.endswith("_token") and isinstance(v, str)}
    more: Any = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    if isinstance(more, dict):  # roles of the folder's own
        named, more = named | more, None
    roles = {role: _content(token) for role, token in named.items() if token is not None}
    return roles, [_content(token) for token in more or ()]


def _content(token: Any) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _token(entry: Mapping[str, Any]) -> AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(entry["content"], **{flag: entry[flag] for flag in flags if flag in entry})


def _templates(folder: Path, declared: Any) -> Mapping[str, str]:
    """From files of their own; else those in `tokenizer_config.json`."""
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (only := folder / "chat_template.jinja").exists():
        files["default"] = only
    found = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return found or _named(declared)


def _named(declared: Any) -> Mapping[str, str]:
    if isinstance(declared, dict):
        return cast(Mapping[str, str], declared)
    if isinstance(declared, list):
        entries = cast(list[Mapping[str, str]], declared)
        return {entry["name"]: entry["template"] for entry in entries}
    return {"default": declared} if declared else {}
