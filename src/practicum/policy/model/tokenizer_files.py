"""The tokenizer of a Hugging Face folder: its rules, the tokens that have roles, chat templates.

The one thing to know: `tokenizer.json` is the tokenizer, whatever class the folder names. It is
what its maker saved, and what grammars are compiled against; transformers builds some anew by the
name of a class, which may split text otherwise. Only a folder without it needs transformers, which
takes seconds to import and converts older files.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
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
    template_files: Mapping[str, Path]
    """Name -> the file that holds the template of that name"""


@contextmanager
def failing_as(what: str) -> Generator[None]:
    """Turn whatever the tokenizers library raises into a UsageError that begins with `what`.

    Where its Rust code gives up, it raises a PanicException, which is no Exception.
    """
    try:
        yield
    except (UsageError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UsageError(f"{what}: {type(error).__name__}: {error}") from error


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
    with failing_as(f"the tokenizer {path} does not load"):
        rules = Tokenizer.from_file(str(path))
    with failing_as(f"the tokenizer in {folder} does not load, for the tokens that it declares"):
        roles = _add_tokens(rules, folder, settings)
    rules.no_truncation()
    rules.no_padding()
    return FolderTokenizer(rules, roles, *_templates(folder, settings.get("chat_template")))


def _converted(folder: Path) -> FolderTokenizer:
    from transformers import AutoTokenizer

    with failing_as(f"the tokenizer in {folder} does not load"):
        loaded: Any = AutoTokenizer.from_pretrained(  # pyright: ignore[reportUnknownMemberType]
            str(folder), local_files_only=True, trust_remote_code=False
        )
        rules: Tokenizer = loaded.backend_tokenizer
    rules.no_truncation()
    rules.no_padding()
    return FolderTokenizer(
        rules, loaded.special_tokens_map, *_templates(folder, loaded.chat_template)
    )


def _optional(path: Path) -> Json:
    return read_json(path) if path.exists() else {}


def _add_tokens(rules: Tokenizer, folder: Path, settings: Json) -> dict[str, str]:
    """Add what the folder declares besides `tokenizer.json`; the tokens that have roles.

    A token that has a role is a control token, whatever `tokenizer.json` says.
    """
    present = rules.get_added_tokens_decoder()
    if "added_tokens_decoder" in settings:
        roles, others = _control_tokens(rules, folder, settings)
        declared = {int(i): _token(one) for i, one in settings["added_tokens_decoder"].items()}
    else:  # older folders say the same in two files of their own
        settings = settings | _optional(folder / "special_tokens_map.json")
        roles, others = _control_tokens(rules, folder, settings)
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


def _control_tokens(
    rules: Tokenizer, folder: Path, settings: Json
) -> tuple[dict[str, str], list[str]]:
    """Those that have roles, and others. Raises UsageError, naming the key."""
    named: dict[str, Any] = {role: settings.get(role) for role in ROLES}
    if named["pad_token"] is None and rules.padding:
        named["pad_token"] = rules.padding["pad_token"]
    named |= {k: v for k, v in settings.items() if k.endswith("_token") and isinstance(v, str)}
    keys = ("extra_special_tokens", "additional_special_tokens")
    key = next((key for key in keys if settings.get(key)), keys[0])
    more: Any = settings.get(key) or []
    if isinstance(more, dict):  # roles of the folder's own
        named, more = named | more, []
    if not isinstance(more, list):
        raise _wrong(folder, key, "a list of tokens, or an object of them", more)
    roles = {r: _content(folder, r, token) for r, token in named.items() if token is not None}
    return roles, [_content(folder, key, token) for token in cast(list[Any], more)]


def _content(folder: Path, key: str, token: Any) -> str:
    """The text of a token, which is declared as that or as an object that holds it."""
    match token:
        case str(content) | {"content": str(content)}:
            return content
        case _:
            raise _wrong(folder, key, "the text of a token, or an object with its `content`", token)


def _wrong(folder: Path, key: str, wanted: str, found: Any) -> UsageError:
    return UsageError(
        f"the tokenizer in {folder} does not load: `{key}` in tokenizer_config.json (or "
        f"special_tokens_map.json) must be {wanted}, not {found!r:.80}"
    )


def _token(entry: Mapping[str, Any]) -> AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(entry["content"], **{flag: entry[flag] for flag in flags if flag in entry})


def _templates(folder: Path, declared: Any) -> tuple[dict[str, str], dict[str, Path]]:
    """Templates and their files: files of their own; else those in `tokenizer_config.json`."""
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (only := folder / "chat_template.jinja").exists():
        files["default"] = only
    if files:
        return {name: _text(path) for name, path in files.items()}, files
    path = folder / "tokenizer_config.json"
    named = _named(declared, path)
    return named, dict.fromkeys(named, path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the chat template {path}: {error.strerror}") from None
    except UnicodeError as error:
        raise UsageError(f"the chat template {path} is not UTF-8: {error}") from None


def _named(declared: Any, path: Path) -> dict[str, str]:
    """The templates of `chat_template`: one, an object of them, or a list of names and texts."""
    if not declared:
        return {}
    named: dict[Any, Any] = {}
    match declared:
        case str():
            named["default"] = declared
        case dict():
            named |= cast(dict[Any, Any], declared)
        case list():
            for entry in cast(list[Any], declared):
                match entry:
                    case {"name": str(name), "template": template}:
                        named[name] = template
                    case _:
                        raise _no_template(path, entry)
        case _:
            raise _no_template(path, declared)
    for template in named.values():
        if not isinstance(template, str):
            raise _no_template(path, template)
    return named


def _no_template(path: Path, found: Any) -> UsageError:
    return UsageError(
        f"`chat_template` in {path} must be a text, or a list of objects with `name` and "
        f"`template`; {found!r:.80} is neither"
    )
