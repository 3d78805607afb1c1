"""Weights in and out of Hugging Face folders. Safetensors only: a pickle is never opened.

One table, `layout`, says which stored tensors make up each of our parameters (queries, keys and
values are one matrix here, three there); loading and saving both walk it, so they cannot disagree.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from practicum.errors import InfraError, UsageError
from practicum.policy.model.family import Json, read_config, read_json, shape_from_config
from practicum.policy.model.transformer import Shape, Transformer

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

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor. The parts of a parameter are stacked along its first dimension."""

    name: str
    shape: tuple[int, ...]


def layout(shape: Shape) -> dict[str, tuple[Part, ...]]:
    """Our parameter name -> the stored tensors it consists of.

    Example:
        `layers.0.qkv` consists of `model.layers.0.self_attn.{q,k,v}_proj.weight`.
    """
    hidden, inner = shape.hidden_size, shape.intermediate_size
    query, key_value = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    table = {
        "embedding": (Part("model.embed_tokens.weight", (shape.vocab_size, hidden)),),
        "norm": (Part("model.norm.weight", (hidden,)),),
    }
    if not shape.tied_head:
        table["untied_head"] = (Part("lm_head.weight", (shape.vocab_size, hidden)),)
    for index in range(shape.num_layers):
        there = f"model.layers.{index}."
        attention, mlp = there + "self_attn.", there + "mlp."
        parts = {
            "attention_norm": (Part(there + "input_layernorm.weight", (hidden,)),),
            "qkv": (
                Part(attention + "q_proj.weight", (query, hidden)),
                Part(attention + "k_proj.weight", (key_value, hidden)),
                Part(attention + "v_proj.weight", (key_value, hidden)),
            ),
            "output": (Part(attention + "o_proj.weight", (hidden, query)),),
            "mlp_norm": (Part(there + "post_attention_layernorm.weight", (hidden,)),),
            "gate_up": (
                Part(mlp + "gate_proj.weight", (inner, hidden)),
                Part(mlp + "up_proj.weight", (inner, hidden)),
            ),
            "down": (Part(mlp + "down_proj.weight", (hidden, inner)),),
        }
        table |= {f"layers.{index}.{name}": value for name, value in parts.items()}
    return table


def load_transformer(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Transformer:
    """The model of a Hugging Face folder, its matrix products in `dtype`.

    Raises UsageError for anything that does not fit, naming the file or tensor.
    """
    shape = shape_from_config(read_config(folder), str(folder / "config.json"))
    files = tensor_files(folder)
    table = layout(shape)
    _check_names(folder, set(files), {part.name for parts in table.values() for part in parts})
    model = Transformer(shape, dtype)
    parameters = dict(model.named_parameters())
    with ExitStack() as stack, torch.no_grad():
        opened = {path: stack.enter_context(_open(path)) for path in sorted(set(files.values()))}
        for name, parts in table.items():
            first_row = 0
            for part in parts:
                stored = _read(opened[files[part.name]], part, files[part.name])
                parameters[name].narrow(0, first_row, part.shape[0]).copy_(stored)
                first_row += part.shape[0]
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
        pieces = parameters[name].detach().split([part.shape[0] for part in parts])
        # A copy per piece: the format refuses views that share memory.
        tensors |= {p.name: t.to(dtype, copy=True) for p, t in zip(parts, pieces, strict=True)}
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config, dtype)
    write_tensors(folder, tensors)
    for companion in COMPANIONS:
        path = source / companion
        if path.exists() and not (folder / companion).exists():
            shutil.copyfile(path, folder / companion)


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
            parameter.fill_(1.0)
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


def _read(reader: Any, part: Part, path: Path) -> Tensor:
    try:
        tensor: Tensor = reader.get_tensor(part.name)
    except SafetensorError as error:
        raise UsageError(f"{path}: cannot read tensor {part.name} ({error})") from None
    if tuple(tensor.shape) != part.shape:
        raise UsageError(
            f"{path}: tensor {part.name} has shape {tuple(tensor.shape)}, but config.json asks for "
            f"{part.shape}"
        )
    if tensor.dtype not in FLOATS:
        raise UsageError(f"{path}: tensor {part.name} is {tensor.dtype}; only plain floats load")
    # One pass without temporaries: the extremes are NaN if anything is.
    if not all(math.isfinite(extreme.item()) for extreme in tensor.aminmax()):
        raise UsageError(f"{path}: tensor {part.name} holds NaN or infinity; the file is damaged")
    return tensor
