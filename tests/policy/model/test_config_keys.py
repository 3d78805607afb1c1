"""Keys of `config.json`: what they mean if they are left out, and that each is of its own type."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.errors import UsageError
from practicum.policy.model.config_keys import MOST, POSITIVE, Keys
from practicum.policy.model.family import FAMILIES, shape_from_config

from .parsed import CLASSES, parsed, parsed_shape

SOME = st.integers(1, 6)
TYPES = ("full_attention", "sliding_attention")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_that_says_nothing_is_that_of_transformers(family: str) -> None:
    assert shape_from_config({"model_type": family}) == parsed_shape({"model_type": family})


def test_every_family_has_a_class_in_transformers() -> None:
    assert FAMILIES.keys() == CLASSES.keys()


@st.composite
def configs(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """A folder's `config.json` that says some of what it could, all of it possible."""
    num_layers, num_heads, num_kv = (
        draw(SOME),
        draw(st.sampled_from([4, 8])),
        draw(st.sampled_from([1, 2, 4])),
    )
    uses_window = draw(st.booleans())
    layer_types = st.lists(st.sampled_from(TYPES), min_size=num_layers, max_size=num_layers)
    whole = st.just(["full_attention"] * num_layers)
    number = st.floats(0.5, 100.0)
    always: dict[str, Any] = {
        "model_type": family,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv,
        "hidden_size": num_heads * draw(st.sampled_from([4, 6, 16])),
        "use_sliding_window": uses_window,
    }
    sometimes: dict[str, st.SearchStrategy[Any]] = {
        "vocab_size": st.integers(10, 1000),
        "intermediate_size": st.integers(1, 100),
        "head_dim": st.sampled_from([4, 6, 64]),
        "max_position_embeddings": st.integers(2, 10_000),
        "rms_norm_eps": st.floats(1e-7, 1e-3),
        "tie_word_embeddings": st.booleans(),
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
        "rope_theta": st.one_of(st.floats(2.0, 1e7), st.integers(2, 10**7)),
        "rope_local_base_freq": st.floats(2.0, 1e7),
        "partial_rotary_factor": st.just(1.0),
        "rope_scaling": st.none() | scalings("rope_type" if family == "gemma3_text" else "type"),
        "no_rope_layers": st.none() | st.lists(st.integers(0, 1), min_size=num_layers, max_size=9),
        "no_rope_layer_interval": SOME,
        "sliding_window": st.integers(1, 50) | (st.none() if family != "gemma2" else st.nothing()),
        "max_window_layers": st.integers(0, 6),
        "sliding_window_pattern": SOME,
        "layer_types": st.none() | (layer_types if uses_window else whole),
        "query_pre_attn_scalar": st.integers(1, 300),
        "final_logit_softcapping": st.none() | number,
        "num_experts_per_tok": st.integers(1, 2),
        "moe_intermediate_size": st.integers(1, 100),
        "norm_topk_prob": st.booleans(),
        "decoder_sparse_step": SOME,
        "mlp_only_layers": st.none() | st.lists(st.integers(0, 6)),
        draw(st.sampled_from(["num_experts", "num_local_experts"])): st.integers(8, 20),
        "hidden_act": st.sampled_from(["silu", "swish"]),
        "eos_token_id": st.just([1, 2]),
        "torch_dtype": st.just("bfloat16"),
        "unheard_of": st.just("x"),
    }
    if family == "gemma2":
        sometimes["attn_logit_softcapping"] = st.none() | number
    said = draw(st.sets(st.sampled_from(sorted(sometimes))))
    config = always | {key: draw(sometimes[key]) for key in sorted(said)}
    if (
        "sliding_attention" in (config.get("layer_types") or ())
        and config.get("sliding_window") is None
    ):
        config["sliding_window"] = 7
    if family.startswith("gemma") and config.get("sliding_window", 1) is None:
        del config["sliding_window"]
    return config


def scalings(older: str) -> st.SearchStrategy[dict[str, Any]]:
    """By its name of today or its older one, which transformers overlooks for Gemma 3."""
    names = st.sampled_from(["rope_type", older])
    kinds = st.sampled_from(["linear", "dynamic"])
    return st.builds(lambda n, k, f: {n: k, "factor": f}, names, kinds, st.floats(1.0, 32.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_random_configurations_are_read_as_transformers_reads_them(family: str) -> None:
    @settings(max_examples=80, deadline=None)
    @given(config=configs(family))
    def holds(config: dict[str, Any]) -> None:
        assert shape_from_config(config) == parsed_shape(config)

    holds()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saved_is_read_as_what_it_was_saved_from(family: str) -> None:
    saved = parsed({"model_type": family}).to_dict()
    assert shape_from_config(saved) == parsed_shape({"model_type": family})


WRONG: dict[type, list[Any]] = {  # by the type of a default
    int: ["3", 3.5, True, [3], {}],
    float: ["1e-6", True, [1.0]],
    bool: ["false", 0, None],
    str: [3, ["silu"]],
    type(None): ["x", b"x"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_of_another_type_is_refused_by_its_key(family: str) -> None:
    for key, default in FAMILIES[family].defaults.items():
        for value in WRONG[type(default)]:
            with pytest.raises(UsageError, match=f"here: {key} is .*should be"):
                shape_from_config({"model_type": family, key: value}, "here")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_number_that_cannot_be_is_refused_by_its_key(family: str) -> None:
    for key in FAMILIES[family].defaults.keys() & POSITIVE:
        for value in (0, -1):
            with pytest.raises(UsageError, match=f"{key} is {value}; it should be above 0"):
                shape_from_config({"model_type": family, key: value})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_number_that_no_model_has_is_refused_by_its_key(family: str) -> None:
    for key, default in FAMILIES[family].defaults.items():
        values = [10**400] if isinstance(default, int | float) else []
        values += [math.inf] if isinstance(default, float) else []
        values += [MOST[key] + 1, 2**63] if key in MOST else []
        for value in values if not isinstance(default, bool) else []:
            with pytest.raises(UsageError, match=f"here: {key} is .*should be at most"):
                shape_from_config({"model_type": family, key: value}, "here")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "factor": math.inf},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": math.inf},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10**400},
        {"rope_type": "yarn", "factor": 1e30, "original_max_position_embeddings": 1e30},
        {"rope_type": "yarn", "original_max_position_embeddings": 1e-320},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e-320},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": math.inf},
        {"rope_type": "linear", "factor": 1e-320},
        {"rope_type": "default", "rope_theta": math.inf},
        {"rope_type": "default", "rope_theta": 10**400},
    ],
)
def test_rotary_numbers_that_cannot_be_are_refused(rope: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="here"):
        shape_from_config({"model_type": "llama", "rope_scaling": rope}, "here")


def test_not_a_number_is_refused_for_what_it_is() -> None:
    with pytest.raises(UsageError, match="vocab_size is nan; it should be a whole number"):
        shape_from_config({"model_type": "llama", "vocab_size": math.nan})
    with pytest.raises(UsageError, match="rms_norm_eps is nan; it should be above 0"):
        shape_from_config({"model_type": "llama", "rms_norm_eps": math.nan})


def test_a_window_that_holds_the_whole_context_is_none() -> None:
    def windows(window: int) -> set[int | None]:
        config = {"model_type": "mistral", "max_position_embeddings": 64, "sliding_window": window}
        return {layer.window for layer in shape_from_config(config).layers}

    assert windows(63) == {63}
    assert windows(64) == windows(2**32) == {None}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_list_of_another_kind_is_refused(family: str) -> None:
    for key in FAMILIES[family].defaults.keys() & {
        "layer_types",
        "no_rope_layers",
        "mlp_only_layers",
    }:
        with pytest.raises(UsageError, match=f"{key} is .*a list, each a"):
            shape_from_config({"model_type": family, key: [{}]})


def test_a_key_that_a_family_does_not_read_may_hold_anything() -> None:
    plain = shape_from_config({"model_type": "llama"})
    strange = {"sliding_window": "x", "num_experts": None, "layer_types": 3}
    assert shape_from_config({"model_type": "llama", **strange}) == plain


def test_two_names_of_one_key_may_not_disagree() -> None:
    agree = {"model_type": "qwen3_moe", "num_experts": 9, "num_local_experts": 9}
    experts = shape_from_config(agree).experts
    assert experts is not None
    assert experts.count == 9
    with pytest.raises(UsageError, match="num_experts is 9 and num_local_experts is 8"):
        shape_from_config({**agree, "num_local_experts": 8})


def test_families_read_no_key_that_is_unknown() -> None:
    known = set(Keys.__dataclass_fields__)
    assert all(family.defaults.keys() <= known for family in FAMILIES.values())


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llama", {"hidden_size": 50}, "hidden_size 50 does not divide by 32 heads"),
        ("llama", {"head_dim": 7}, "heads of 7 numbers"),
        ("llama", {"per_layer_config": {"0": {"intermediate_size": 8}}}, "per_layer_config"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries for 36 layers"),
        ("qwen2", {"layer_types": []}, "layer_types has 0 entries for 32 layers"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("gemma2", {"sliding_window": None}, "sliding_window is None"),
        ("gemma2", {"hidden_activation": None}, "hidden_activation is None"),
    ],
)
def test_contradictions_are_named(family: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        shape_from_config({"model_type": family, **changes})
