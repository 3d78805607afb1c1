"""The trainer's state in a folder: three safetensors files and one of JSON. Never pickle.

The one thing to know: everything is checked before anything is changed. The JSON holds a digest of
each file, so a damaged or foreign folder is refused while the trainer is still as it was.

    weights.safetensors         masters, by parameter name
    exp_avg.safetensors         Adam's first moments
    exp_avg_sq.safetensors      Adam's second moments
    trainer.json                format, version, number of optimizer updates, digests
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from practicum.errors import StoreError
from practicum.policy.train.masters import Masters, digest
from practicum.policy.train.optim import AdamW

FORMAT = 1
COUNTERS = "trainer.json"


def save(folder: Path, masters: Masters, optimizer: AdamW, version: int) -> None:
    """Write into an existing folder. Making it appear at once (rename) is the caller's part.

    Raises StoreError if it cannot be written.
    """
    files = _files(masters, optimizer)
    for name, tensors in files.items():
        try:
            save_file({key: tensor.detach() for key, tensor in tensors.items()}, folder / name)
        except SafetensorError as error:  # also what the library makes of a full disk
            raise StoreError(f"{folder / name} cannot be written: {error}") from error
    record = {
        "format": FORMAT,
        "version": version,
        "num_updates": optimizer.num_updates,
        "digests": {name: digest(tensors) for name, tensors in files.items()},
    }
    (folder / COUNTERS).write_text(json.dumps(record, indent=2) + "\n")


def load(folder: Path, masters: Masters, optimizer: AdamW) -> int:
    """Read back what `save` wrote and return the version.

    Raises StoreError if the folder does not fit, and then changes nothing.
    """
    record = _record(folder)
    files = _files(masters, optimizer)
    for name, tensors in files.items():
        _check(folder / name, tensors, record["digests"].get(name))
    for name, tensors in files.items():
        with safe_open(folder / name, framework="pt") as stored, torch.no_grad():
            for key, tensor in tensors.items():
                tensor.copy_(stored.get_tensor(key))
    optimizer.restore_count(record["num_updates"])
    return record["version"]


def _files(masters: Masters, optimizer: AdamW) -> dict[str, dict[str, Tensor]]:
    return {
        "weights.safetensors": masters.weights,
        "exp_avg.safetensors": optimizer.moments("exp_avg"),
        "exp_avg_sq.safetensors": optimizer.moments("exp_avg_sq"),
    }


def _record(folder: Path) -> dict[str, Any]:
    path = folder / COUNTERS
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read the trainer's state {path}: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise StoreError(f"{path} is not a trainer's state of format {FORMAT}")
    integers = all(isinstance(record.get(key), int) for key in ("version", "num_updates"))  # pyright: ignore[reportUnknownMemberType]
    if not integers or not isinstance(record.get("digests"), dict):  # pyright: ignore[reportUnknownMemberType]
        raise StoreError(f"{path} lacks version, num_updates or digests")
    return record  # pyright: ignore[reportUnknownVariableType]


def _check(path: Path, expected: Mapping[str, Tensor], recorded_digest: object) -> None:
    """Names, types, shapes and bytes of one file."""
    try:
        with safe_open(path, framework="pt") as stored:
            names = list(stored.keys())
            found = {name: stored.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise StoreError(f"cannot read the trainer's state {path}: {error}") from error
    for key in sorted(expected.keys() | found.keys()):
        described = [_describe(tensors.get(key)) for tensors in (expected, found)]
        if described[0] != described[1]:
            raise StoreError(
                f"{path} does not fit this model: {key} should be {described[0]}, is {described[1]}"
            )
    if digest(found) != recorded_digest:
        raise StoreError(f"{path} is damaged: its digest differs from the one in {COUNTERS}")


def _describe(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
