"""Writes a small GGUF file out of a model folder, the way llama.cpp's converter does."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from practicum.policy.model.family import read_config, read_json

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
NUM_TINY_TOKENS = 259
WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_gguf(folder: Path, path: Path, architecture: str = "llama") -> None:
    """Matrices in Q8_0 where rows allow it, the rest in float32."""
    config = read_config(folder)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_tokenizer(writer, folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = _interleaved(name, tensor, config)
        kind = gguf.GGMLQuantizationType.F32
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
        stored = gguf.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(_gguf_name(name), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    file = read_json(folder / "tokenizer.json")
    special = {token["content"]: token["id"] for token in file["added_tokens"]}
    special["<|endoftext|>"] = NUM_TINY_TOKENS  # transformers adds it to GPT-2 tokenizers without
    vocabulary = file["model"]["vocab"] | special
    vocabulary["hi"] = NUM_TINY_TOKENS + 1  # the format wants at least one merge
    tokens = sorted(vocabulary.items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([3 if token in special else 1 for token, _ in tokens])
    writer.add_token_merges(["h i"])
    for add, token in (
        (writer.add_bos_token_id, "<|im_start|>"),
        (writer.add_eos_token_id, "<|im_end|>"),
        (writer.add_pad_token_id, "<|pad|>"),
    ):
        add(special[token])
    writer.add_chat_template(read_json(folder / "tokenizer_config.json")["chat_template"])


def _interleaved(name: str, tensor: Any, config: dict[str, Any]) -> Any:
    for projection, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if projection in name:
            rows, columns = tensor.shape
            halves = tensor.reshape(config[key], 2, rows // config[key] // 2, columns)
            return halves.swapaxes(1, 2).reshape(rows, columns)
    return tensor


def _gguf_name(name: str) -> str:
    module = name.removesuffix(".weight")
    if module in WHOLE:
        return f"{WHOLE[module]}.weight"
    _, _, index, inner = module.split(".", 3)
    return f"blk.{index}.{NAMES[inner]}.weight"
