"""What several commands take: common options, and any key of a recipe by its dotted path."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from practicum.errors import UsageError

_KEY = re.compile(r"--([a-z_0-9]+(?:\.[a-z_0-9]+)+|name|threads)(?:=(.*))?", re.DOTALL)
"""A dotted path, or a key of a recipe's top level that has no option of its own."""

UnsafeSandbox = Annotated[
    bool,
    Parameter(negative=(), help="Run model-written code without isolation where there is none."),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.")]

recipe_keys: dict[str, str] = {}
"""The keys of a recipe that this command line sets; filled before a command runs."""


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate `--section.key value` (or `=value`) from the rest.

    Example:
        >>> split_overrides(["train", "demo", "--train.steps", "3"])
        (['train', 'demo'], {'train.steps': '3'})
    """
    if argv[:1] == ["bench"]:  # it has a --threads of its own
        return list(argv), {}
    rest: list[str] = []
    overrides: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        match = _KEY.fullmatch(word)
        if match is None:
            rest.append(word)
            continue
        value = match[2] if match[2] is not None else next(words, None)
        if value is None:
            raise UsageError(f"{word} needs a value")
        overrides[match[1]] = value
    return rest, overrides


def load_config(
    recipe: str, model: str | None, seed: int | None, output: str | None, unsafe: bool
) -> Any:
    """The `RunConfig` of a recipe, with the options and keys of this command line set.

    Raises UsageError for what a recipe cannot hold.
    """
    from practicum.config import load_recipe

    overrides = dict(recipe_keys)
    for key, value in (("model.path", model), ("output", output)):
        if value is not None:
            overrides[key] = json.dumps(value)
    if seed is not None:
        overrides["seed"] = str(seed)
    if unsafe:
        overrides["sandbox.unsafe"] = "true"
    return load_recipe(recipe, overrides)
