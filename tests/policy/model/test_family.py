"""What is read from `config.json`, and what is refused by name."""

from collections.abc import Mapping
from typing import Any

import pytest

from practicum.errors import UsageError
from practicum.policy.model.family import shape_from_config
from practicum.policy.model.tiny import tiny_config


def test_the_shape_has_what_the_config_says() -> None:
    shape = shape_from_config(tiny_config())
    assert (shape.hidden_size, shape.num_layers, shape.context_length) == (192, 4, 512)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_size) == (6, 2, 32)
    assert shape.inverse_frequencies[0] == 1.0
    assert shape.tied_head


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
        ({"model_type": "qwen3"}, "qwen3.*come later"),
        ({"model_type": None}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"num_key_value_heads": 4}, "6 heads do not divide by 4"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "none_such", "factor": 4.0}}, "none_such"),
    ],
)
def test_what_does_not_run_is_refused_by_name(changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        shape_from_config({**tiny_config(), **changes})
