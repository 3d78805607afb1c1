"""A llama-architecture GGUF file as a Hugging Face folder: exactly the dequantised values, float32.

GGUF stores queries and keys with the rotary pairs interleaved, Hugging Face with the two halves one
after the other; everything else is a renaming.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from practicum.errors import UsageError
from practicum.policy.model.family import Json, read_json, shape_from_config
from practicum.policy.model.weights import layout, write_config, write_tensors

Floats = npt.NDArray[np.float32]

RENAMED = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Hugging Face module -> GGUF tensor; within layer i they are `model.layers.i.` and `blk.i.`."""


def import_gguf(path: Path, folder: Path) -> None:
    """Write weights, configuration, tokenizer and chat template of the GGUF file into `folder`.

    Raises UsageError if the file is of another architecture.
    """
    reader = gguf.GGUFReader(str(path))
    config = _config(reader, path)
    tensors = _tensors(reader, config)
    write_config(folder, config, torch.float32)
    write_tensors(folder, tensors)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
    _save_tokenizer(path, folder)


def _save_tokenizer(path: Path, folder: Path) -> None:
    from transformers import AutoTokenizer  # seconds to import, and only this needs it

    tokenizer: Any = AutoTokenizer.from_pretrained(  # pyright: ignore[reportUnknownMemberType]
        str(path.parent), gguf_file=path.name, local_files_only=True, trust_remote_code=False
    )
    tokenizer.save_pretrained(str(folder))
    settings = read_json(folder / "tokenizer_config.json")
    # The class name that every release of the library knows, without traces of how it was made.
    traces = ("backend", "is_local", "local_files_only", "model_max_length")
    settings = {key: settings[key] for key in settings if key not in traces}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["clean_up_tokenization_spaces"] = False
    text = json.dumps(settings, indent=2, sort_keys=True)
    (folder / "tokenizer_config.json").write_text(text + "\n")


def _config(reader: gguf.GGUFReader, path: Path) -> Json:
    def value(key: str) -> Any:
        field = reader.fields.get(key)
        if field is None:
            raise UsageError(f"{path} has no field {key}")
        return field.contents()

    architecture = value("general.architecture")
    if architecture != "llama":
        raise UsageError(f"{path} is of architecture {architecture!r}; only 'llama' is imported")
    # Sizes are stored innermost first.
    sizes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": sizes["token_embd.weight"][1],
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": value("llama.attention.head_count"),
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": value("llama.rope.dimension_count"),
        "hidden_act": "silu",
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": _shortest(value("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(value("llama.rope.freq_base")),
        "tie_word_embeddings": "output.weight" not in sizes,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
    }


def _shortest(number: float) -> float:
    """The decimal that was meant: GGUF stores 1e-5 as the float32 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def _tensors(reader: gguf.GGUFReader, config: Json) -> dict[str, Tensor]:
    stored = {tensor.name: tensor for tensor in reader.tensors}
    num_heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors: dict[str, Tensor] = {}
    for parts in layout(shape_from_config(config)).values():
        for part in parts:
            source = stored[_gguf_name(part.name)]
            values = cast(Floats, gguf.dequantize(source.data, source.tensor_type))
            values = values.reshape(part.shape)
            heads = num_heads.get(part.name.split(".")[-2])
            if heads is not None:
                values = _halves(values, heads)
            tensors[part.name] = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return tensors


def _gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    module = name.removesuffix(".weight")
    if module.startswith("model.layers."):
        index, inner = module.removeprefix("model.layers.").split(".", 1)
        return f"blk.{index}.{RENAMED[inner]}.weight"
    return f"{RENAMED[module]}.weight"


def _halves(values: Floats, num_heads: int) -> Floats:
    """Rows of each head from (pair, member) to (member, pair) order."""
    rows, columns = values.shape
    pairs = values.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
