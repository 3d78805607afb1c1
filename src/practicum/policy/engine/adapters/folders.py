"""Hugging Face folders as an exchange of weights between a trainer and engines elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from practicum.errors import UsageError
from practicum.policy.model.family import read_json
from practicum.policy.model.weights import tensor_files

INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"


def has_separate_head(folder: Path) -> bool:
    """Whether the folder stores a head, or leaves it to be the embedding once more."""
    return HEAD in tensor_files(folder)


@contextlib.contextmanager
def with_separate_head(folder: Path) -> Generator[Path]:
    """The folder, or links to it and a stored copy of its tied head, for as long as it lasts.

    vLLM (0.32) packs a head for the CPU when it loads it, and an update of a tied model replaces
    the embedding but not the packed copy: without a word the model goes on with its old head. A
    head that is stored like any other matrix is replaced like any other.
    """
    if has_separate_head(folder):
        yield folder
        return
    beside = folder.parent if os.access(folder.parent, os.W_OK) else None  # else: where all go
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-head-", dir=beside) as made:
        there = Path(made)
        there.chmod(0o755)  # the engine may be another user's
        for path in folder.iterdir():
            if path.name != INDEX:
                os.symlink(path.absolute(), there / path.name)
        _add_head(folder, there)
        yield there


def _add_head(folder: Path, there: Path) -> None:
    files = tensor_files(folder)
    embeddings = [name for name in files if name.endswith("embed_tokens.weight")]
    if len(embeddings) != 1:
        raise UsageError(f"{folder} stores {len(embeddings)} embeddings; its head cannot be told")
    with safe_open(files[embeddings[0]], framework="pt") as stored:
        head = stored.get_tensor(embeddings[0])
    name = "model-head.safetensors"
    save_file({HEAD: head}, there / name, metadata={"format": "pt"})
    (there / name).chmod(0o644)
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        index["weight_map"] = {**index["weight_map"], HEAD: name}
        (there / INDEX).write_text(json.dumps(index))
