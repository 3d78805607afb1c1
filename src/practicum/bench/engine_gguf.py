"""A Hugging Face folder as a GGUF file, the one format that openvino-genai reads without torch.

The inverse of `policy/model/gguf_import.py` for the llama architecture. Matrices are stored as
float16, norms as float32; the tokenizer goes along because the peer wants one, though it is never
asked to tokenise anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from practicum.errors import UsageError
from practicum.policy.model.family import read_json
from practicum.policy.model.gguf_import import RENAMED
from practicum.policy.model.weights import tensor_files

Array = npt.NDArray[Any]


def export_gguf(folder: Path, path: Path) -> None:
    """Write the model of `folder` to `path`. Raises UsageError if it is no llama."""
    config = read_json(folder / "config.json")
    if config.get("model_type") != "llama":
        raise UsageError(
            f"{folder} is a {config.get('model_type')!r} model; only 'llama' is written as GGUF, "
            "so leave openvino out of --peers"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(path), "llama")
    _write_config(writer, config, folder)
    _write_tokenizer(writer, folder)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, stored_in in sorted(tensor_files(folder).items()):
        values = _read(stored_in, name)
        kind = name.split(".")[-2]
        if kind in heads:
            values = _pairs(values, heads[kind])
        dtype = np.float16 if values.ndim == 2 else np.float32
        writer.add_tensor(_gguf_name(name), values.astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read(path: Path, name: str) -> Array:
    opened: Any = safe_open(path, framework="numpy")
    with opened as reader:
        return reader.get_tensor(name)


def _write_config(writer: gguf.GGUFWriter, config: dict[str, Any], folder: Path) -> None:
    writer.add_name(folder.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    described = read_json(folder / "tokenizer.json")
    ids: dict[str, int] = dict(described["model"]["vocab"])
    special: set[int] = set()
    for added in described["added_tokens"]:
        ids[added["content"]] = added["id"]
        if added["special"]:
            special.add(added["id"])
    texts = sorted(ids, key=ids.__getitem__)
    kinds = [gguf.TokenType.CONTROL if ids[t] in special else gguf.TokenType.NORMAL for t in texts]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    has_merges = bool(described["model"].get("merges"))
    gguf.SpecialVocab(folder, load_merges=has_merges).add_to_gguf(writer, quiet=True)


def _gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    module = name.removesuffix(".weight")
    if module.startswith("model.layers."):
        index, inner = module.removeprefix("model.layers.").split(".", 1)
        return f"blk.{index}.{RENAMED[inner]}.weight"
    return f"{RENAMED[module]}.weight"


def _pairs(values: Array, num_heads: int) -> Array:
    """Rows of each head from (member, pair) to (pair, member) order."""
    rows, columns = values.shape
    halves = values.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
