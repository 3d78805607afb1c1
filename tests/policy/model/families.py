"""A small random model of every family, made and saved by transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

Changes = Mapping[str, Any]

VOCAB = 97

SIZES: Changes = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

GEMMA: Changes = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}

FAMILIES: Mapping[str, Changes] = {
    "llama": {},
    "smollm3": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
    },
    "mistral": {"sliding_window": 7, "head_dim": 16},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {
        **GEMMA,
        "sliding_window_pattern": 3,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}
"""What a family needs besides sizes; every feature of it is on."""


def write_family(folder: Path, family: str, *, fused: bool = False, **changes: object) -> None:
    """A model with opinions: large weights, norms and biases away from where they begin.

    `fused` stores the experts of a layer as one tensor.
    """
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family], **changes})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder, save_original_format=not fused)


def reference(folder: Path) -> Any:
    """The folder's model as transformers runs it, in its plain implementation and float32."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()
