"""Weights in and out of Hugging Face folders. Safetensors only: a pickle is never opened.

A folder is read whole or refused: every tensor that its configuration asks for must be there, be of
that shape and finite, and no other may be. `layout.py` has the names.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from practicum.errors import InfraError, UsageError
from practicum.policy.model.family import Json, read_config, read_json, shape_from_config
from practicum.policy.model.layout import FUSED_EXPERTS, Part, layout
from practicum.policy.model.transformer import Transformer

COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "LICENSE",
)
"""Files that make weights usable; an export carries those that its source has."""

FORGOTTEN = 1 << 28
"""Most bytes of a file that stay in memory while it is read."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def load_transformer(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Transformer:
    """The model of a Hugging Face folder, its matrix products in `dtype`.

    Raises UsageError for anything that does not fit, naming the file or tensor.
    """
    shape = shape_from_config(read_config(folder), str(folder / "config.json"))
    files = tensor_files(folder)
    table = layout(shape, fused=any(name.endswith(FUSED_EXPERTS) for name in files))
    _check_names(folder, set(files), {part.name for parts in table.values() for part in parts})
    _check_shapes(files, [part for parts in table.values() for part in parts])
    model = Transformer(shape, dtype)
    parameters = dict(model.named_parameters())
    with torch.no_grad(), _Files(files) as stored:
        for name, parts in table.items():
            rows = _rows(parameters[name], parts)
            for part, place in zip(parts, rows, strict=True):
                place.copy_(stored.tensor(part))
    return model


def save_transformer(
    model: Transformer,
    folder: Path,
    *,
    source: Path,
    masters: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a plain Hugging Face folder that any other tool loads.

    `source` is the folder the model came from: its configuration and tokenizer go along. `masters`
    holds more precise values than the model's own, by parameter name, as a trainer keeps them.
    """
    config = read_config(source)
    assert shape_from_config(config) == model.shape, f"the model does not come from {source}"
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    for name, master in (masters or {}).items():
        assert parameters[name].shape == master.shape, f"master {name!r} has another shape"
        parameters[name] = master
    tensors: dict[str, Tensor] = {}
    for name, parts in layout(model.shape).items():
        pieces = zip(parts, _rows(parameters[name].detach(), parts), strict=True)
        # A copy per piece: the format refuses views that share memory.
        tensors |= {part.name: rows.to(dtype, copy=True) for part, rows in pieces}
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config, dtype)
    write_tensors(folder, tensors)
    for companion in COMPANIONS:
        path = source / companion
        if path.exists() and not (folder / companion).exists():
            shutil.copyfile(path, folder / companion)


def _rows(parameter: Tensor, parts: Sequence[Part]) -> Sequence[Tensor]:
    """The rows of a parameter that belong to each of its parts, as views."""
    rows = parameter.view(-1, *parts[0].shape[1:])
    return rows.split([part.rows for part in parts])


def write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """`model.safetensors`, readable like any other file (the library makes it private)."""
    path = folder / "model.safetensors"
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise InfraError(f"cannot write {path}: {error}; is the disk full?") from error
    path.chmod((folder / "config.json").stat().st_mode & 0o666)


def write_config(folder: Path, config: Json, dtype: torch.dtype) -> None:
    """`config.json` for weights stored in `dtype`."""
    kept = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    kept["dtype"] = str(dtype).removeprefix("torch.")
    text = json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


@torch.no_grad()
def reset(model: Transformer, seed: int) -> None:
    """Fresh weights: normal, residual outputs scaled down by depth. Same seed, same weights."""
    generator = torch.Generator().manual_seed(seed)
    residual = (2 * model.shape.num_layers) ** -0.5
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            zero = name.endswith("bias") or model.shape.norms.plus_one
            parameter.fill_(0.0 if zero else 1.0)
            continue
        scale = 0.02 * (residual if name.endswith((".output", ".down")) else 1.0)
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def tensor_files(folder: Path) -> dict[str, Path]:
    """Stored tensor name -> file, for one or many safetensors files."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.exists():
        with _open(single) as reader:
            return dict.fromkeys(reader.keys(), single)
    if not index.exists():
        if next(folder.glob("*.bin"), None):
            raise UsageError(
                f"{folder} holds *.bin weights, which are pickles that can run code when opened, "
                "so they are refused; convert them to safetensors first"
            )
        raise UsageError(f"{folder} has no model.safetensors and no model.safetensors.index.json")
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict):
        raise UsageError(f"{index} has no weight_map")
    files: dict[str, Path] = {}
    for name, file_name in table.items():  # pyright: ignore[reportUnknownVariableType]
        path = folder / Path(str(file_name)).name  # pyright: ignore[reportUnknownArgumentType]
        if not path.exists():
            raise UsageError(f"{index} names {path.name}, which is not in the folder")
        files[str(name)] = path  # pyright: ignore[reportUnknownArgumentType]
    return files


class _Files:
    """Stored tensors, one after the other.

    A file is opened anew after every `FORGOTTEN` bytes, so that what was read leaves memory again.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._open = ExitStack()
        self._path: Path | None = None
        self._reader: Any = None
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def tensor(self, part: Part) -> Tensor:
        """Valid until the next one is read."""
        path = self._files[part.name]
        if path != self._path or self._num_bytes > FORGOTTEN:
            self._open.close()
            self._path, self._reader, self._num_bytes = path, _open(path), 0
            self._open.enter_context(self._reader)
        tensor = _read(self._reader, part, path)
        self._num_bytes += tensor.nbytes
        return tensor


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"{path} is not readable as safetensors ({error}); fetch it again"
        ) from None


def _check_names(folder: Path, found: set[str], expected: set[str]) -> None:
    missing = sorted(expected - found)
    extra = sorted(
        name
        for name in found - expected
        # Some exporters store what can be derived: the rotary table, a tied head.
        if not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight"
    )
    if missing or extra:
        complaints = [
            f"it {verb} {len(names)} tensors: {', '.join(names[:3])}{', ...' if names[3:] else ''}"
            for verb, names in (("lacks", missing), ("has besides", extra))
            if names
        ]
        raise UsageError(f"{folder} is not the model of its config.json: {'; '.join(complaints)}")


def _check_shapes(files: Mapping[str, Path], parts: Sequence[Part]) -> None:
    """By the headers alone, before memory is taken for what config.json asks for."""
    for path in sorted({files[part.name] for part in parts}):
        with _open(path) as reader:
            for part in parts:
                if files[part.name] != path:
                    continue
                try:
                    found = tuple(reader.get_slice(part.name).get_shape())
                except SafetensorError as error:
                    raise UsageError(f"{path}: cannot read tensor {part.name} ({error})") from None
                if found != part.shape:
                    raise UsageError(
                        f"{path}: tensor {part.name} has shape {found}, but config.json asks for "
                        f"{part.shape}"
                    )


def _read(reader: Any, part: Part, path: Path) -> Tensor:
    try:
        tensor: Tensor = reader.get_tensor(part.name)
    except SafetensorError as error:
        raise UsageError(f"{path}: cannot read tensor {part.name} ({error})") from None
    if tensor.dtype not in FLOATS:
        raise UsageError(f"{path}: tensor {part.name} is {tensor.dtype}; only plain floats load")
    # One pass without temporaries: the extremes are NaN if anything is.
    if not all(math.isfinite(extreme.item()) for extreme in tensor.aminmax()):
        raise UsageError(f"{path}: tensor {part.name} holds NaN or infinity; the file is damaged")
    return tensor
