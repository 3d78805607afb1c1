"""What is read from `config.json`, and what is refused by name."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from practicum.errors import UsageError
from practicum.policy.model.family import FAMILIES, shape_from_config
from practicum.policy.model.shape import Shape
from practicum.policy.model.tiny import tiny_config

from . import families

LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}


def shape_of(family: str, **changes: object) -> Shape:
    return shape_from_config(
        {"model_type": family, **families.SIZES, **families.FAMILIES[family], **changes}
    )


def test_the_shape_has_what_the_config_says() -> None:
    shape = shape_from_config(tiny_config())
    assert (shape.hidden_size, shape.num_layers, shape.context_length) == (192, 4, 512)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_size) == (6, 2, 32)
    assert shape.rotaries[0].inverse_frequencies[0] == 1.0
    assert shape.tied_head


def test_reading_a_configuration_does_not_change_it() -> None:
    """It is written into exports as it was."""
    config = tiny_config() | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    before = copy.deepcopy(config)
    shape_from_config(config)
    assert config == before


def test_missing_keys_take_the_defaults_of_the_family() -> None:
    """Older folders leave out the head size and, without grouped heads, the number of KV heads."""
    config = tiny_config()
    del config["head_dim"], config["num_key_value_heads"]
    shape = shape_from_config(config)
    assert (shape.head_size, shape.num_kv_heads) == (32, 6)


def test_both_spellings_of_the_rotary_base_mean_the_same() -> None:
    old = tiny_config() | {"rope_theta": 5e5}
    new = tiny_config() | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    del new["rope_theta"]
    assert shape_from_config(old) == shape_from_config(new) != shape_from_config(tiny_config())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "phi3"}, "'phi3'.*it computes llama, .*qwen3.*OpenAiPolicy"),
        ({"model_type": "gemma3"}, "'gemma3'.*gemma3_text"),
        ({"model_type": None}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'.*silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"num_key_value_heads": 4}, "6 heads do not divide by 4"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"rope_scaling": LONGROPE}, "longrope.*these run.*yarn"),
        ({"rope_scaling": {"rope_type": "none_such", "factor": 4.0}}, "none_such.*linear, dynamic"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_what_does_not_run_is_refused_by_name(changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        shape_from_config({**tiny_config(), **changes})


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation is 'relu'.*gelu_pytorch_tanh"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ("qwen3", {"layer_types": ["full_attention"] * 3}, "(?s)layer_types.*3"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "sliding_window is None"),
        ("mixtral", {"num_local_experts": 0}, "mixtral"),
        ("mixtral", {"num_experts_per_tok": 6}, "6 of 5 experts"),
    ],
)
def test_contradictions_of_other_families_are_named(
    family: str, changes: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        shape_of(family, **changes)


def test_every_family_that_runs_is_tested() -> None:
    assert FAMILIES.keys() == families.FAMILIES.keys()


def test_dynamic_rotation_is_the_plain_table_up_to_the_declared_context() -> None:
    """Beyond it the table would change with the length, and no sequence gets there."""
    dynamic = shape_of("llama", rope_scaling={"type": "dynamic", "factor": 4.0})
    assert dynamic == shape_of("llama")
    assert dynamic.context_length == 64


def test_yarn_extends_the_context_and_scales_the_rotation() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    shape = shape_of("qwen2", rope_scaling=yarn)
    assert shape.context_length == 256
    assert shape.rotaries[0].scale == pytest.approx(1.1386, abs=1e-4)  # 0.1 ln 4 + 1
    assert shape_of("qwen2").context_length == 64


def test_old_and_new_keys_of_gemma_3_mean_the_same() -> None:
    old = shape_of(
        "gemma3_text",
        rope_parameters=None,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert old == shape_of("gemma3_text")
    whole, windowed = old.rotaries
    assert windowed.inverse_frequencies[0] == 1.0
    assert whole.inverse_frequencies[0] == 0.125
    assert [kind.rotary for kind in old.layers] == [1, 1, 0, 1]
    assert [kind.window for kind in old.layers] == [5, 5, None, 5]


def test_layers_without_rotation_are_those_of_the_list() -> None:
    assert [kind.rotary for kind in shape_of("smollm3").layers] == [0, 0, 0, None]


def test_sparse_layers_are_those_of_the_list_and_the_step() -> None:
    shape = shape_of("qwen3_moe", mlp_only_layers=[3], decoder_sparse_step=2)
    assert [kind.sparse for kind in shape.layers] == [False, True, False, False]
