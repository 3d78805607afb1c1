"""`tiny`: a 1.6-million-parameter Llama with random weights and one token per byte.

It is an ordinary Hugging Face folder, so everything treats it as any other model; it knows nothing,
but a warm-up on worked solutions teaches it small tasks in minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from practicum.policy.model.family import Json, shape_from_config
from practicum.policy.model.token_bytes import NUM_BYTES, byte_symbols
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import reset, save_transformer, write_config

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, START, END)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_config(
    *, hidden_size: int = 192, num_layers: int = 4, context_length: int = 512, tied: bool = True
) -> Json:
    """A `config.json`; the vocabulary is the 256 bytes and three control tokens."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": NUM_BYTES + len(SPECIAL),
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 8 // 3,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": hidden_size // 6,
        "hidden_act": "silu",
        "max_position_embeddings": context_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "pad_token_id": NUM_BYTES,
        "eos_token_id": NUM_BYTES + 2,
    }


def write_tiny(folder: Path, *, seed: int = 0, config: Json | None = None) -> None:
    """Write the model into an existing folder. Same seed, same bytes."""
    config = config or tiny_config()
    write_config(folder, config, torch.float32)
    _write_tokenizer(folder)
    model = Transformer(shape_from_config(config), torch.float32)
    reset(model, seed)
    save_transformer(model, folder, source=folder)


def _write_tokenizer(folder: Path) -> None:
    """Byte-level, without merges: any text is encoded, one token per UTF-8 byte."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    ends = {"pad_token_id": NUM_BYTES, "eos_token_id": [NUM_BYTES + 2]}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
