"""Rotary tables and the keys they are read from, beside transformers' own functions."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.errors import UsageError
from practicum.policy.model.family import shape_from_config
from practicum.policy.model.rotary import VARIANTS, context_length, rotary_table
from practicum.policy.model.shape import Rotary

from .parsed import parsed, parsed_shape, parsed_table

BASES = st.floats(10.0, 1e7) | st.integers(10, 10**7)
FACTORS = st.floats(1.0, 64.0) | st.integers(1, 64)
ORIGINALS = st.integers(64, 100_000)
HEADS = st.sampled_from([4, 6, 64, 80, 128, 256])

OWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "default": {},
    "linear": {"factor": FACTORS},
    "dynamic": {"factor": st.integers(1, 64)},
    "yarn": {"factor": FACTORS},
    "llama3": {
        "factor": FACTORS,
        "low_freq_factor": st.floats(0.5, 3.0),
        "high_freq_factor": st.integers(4, 8) | st.floats(3.5, 8.0),
    },
}
PERHAPS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "yarn": {
        "original_max_position_embeddings": ORIGINALS,
        "attention_factor": st.none() | st.floats(0.1, 2.0),
        "beta_fast": st.none() | st.floats(8.0, 64.0) | st.integers(8, 64),
        "beta_slow": st.none() | st.floats(0.5, 4.0),
        "mscale": st.sampled_from([None, 0, 0.707, 1, 1.0]),
        "mscale_all_dim": st.sampled_from([None, 0, 0.5, 1, 1.0]),
        "truncate": st.booleans(),
    },
    "llama3": {"original_max_position_embeddings": ORIGINALS},
}


def parameters(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    """Of one table, without its base."""
    always = {"rope_type": st.just(kind), **OWN[kind]}
    return st.fixed_dictionaries(always, optional=PERHAPS.get(kind, {}))


def config(head_size: int, base: float, **own: object) -> dict[str, Any]:
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 2}
    length = {"max_position_embeddings": 5000, "rope_theta": base}
    return {"model_type": "llama", "hidden_size": head_size, **heads, **length, **own}


def test_every_variant_is_compared() -> None:
    assert OWN.keys() == VARIANTS.keys()


@pytest.mark.parametrize("kind", VARIANTS)
def test_random_tables_are_those_of_transformers_bit_for_bit(kind: str) -> None:
    @settings(deadline=None)
    @given(head_size=HEADS, base=BASES, own=parameters(kind))
    def holds(head_size: int, base: float, own: dict[str, Any]) -> None:
        theirs = parsed_table(parsed(config(head_size, base, rope_parameters=own)))
        [ours] = shape_from_config(config(head_size, base, rope_parameters=own)).rotaries
        assert ours == theirs

    holds()


@settings(deadline=None)
@given(own=st.sampled_from(sorted(OWN)).flatmap(parameters), base=BASES)
def test_older_keys_mean_what_transformers_takes_them_for(own: dict[str, Any], base: float) -> None:
    own = dict(own)
    own["type"] = own.pop("rope_type")
    older = config(64, base, rope_scaling=own)
    assert shape_from_config(older) == parsed_shape(older)
    newer = {key: value for key, value in config(64, base).items() if key != "rope_theta"}
    newer["rope_parameters"] = {"rope_theta": base, **own, "rope_type": own["type"]}
    assert shape_from_config(newer) == shape_from_config(older)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"factor": 3.0}},
        {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 3.0}},
        {"rope_scaling": None, "rope_parameters": {"rope_theta": 7e3, "rope_type": "default"}},
        {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 3.0}},
        {"rope_parameters": {"rope_theta": 7e3, "partial_rotary_factor": 1.0}},
        {"rope_parameters": {}, "partial_rotary_factor": 1.0},
        {"rope_scaling": {"type": "default"}},
    ],
)
def test_of_several_keys_the_same_one_wins(keys: dict[str, Any]) -> None:
    both = config(64, 5e5, **keys)
    assert shape_from_config(both) == parsed_shape(both)


def test_the_original_context_may_stand_beside_the_parameters() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 99}
    beside = config(64, 5e5, rope_parameters=yarn, original_max_position_embeddings=256)
    ours = shape_from_config(beside)
    assert ours.rotaries == parsed_shape(beside).rotaries
    assert ours.context_length == 5000
    within = {**yarn, "original_max_position_embeddings": 256}
    assert shape_from_config(config(64, 5e5, rope_parameters=within)) == ours


def gemma(types: list[str], **changes: object) -> dict[str, Any]:
    return {
        "model_type": "gemma3_text",
        "num_hidden_layers": len(types),
        "layer_types": types,
        "head_dim": 32,
        **changes,
    }


LAYERS = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=1, max_size=4)
ONE = st.sampled_from(["default", "linear", "llama3"]).flatmap(parameters)


@settings(deadline=None)
@given(
    types=LAYERS,
    whole=ONE,
    windowed=ONE | st.none(),
    base=st.none() | BASES,
    older=st.fixed_dictionaries({}, optional={"rope_theta": BASES, "rope_local_base_freq": BASES}),
)
def test_types_of_layers_may_have_tables_of_their_own(
    types: list[str],
    whole: dict[str, Any],
    windowed: dict[str, Any] | None,
    base: float | None,
    older: dict[str, Any],
) -> None:
    if base is not None:
        whole = {**whole, "rope_theta": base}
    tables = {"full_attention": whole, "sliding_attention": windowed}
    both = gemma(types, rope_parameters=tables, **older)
    assert shape_from_config(both) == parsed_shape(both)


@settings(deadline=None)
@given(
    types=LAYERS,
    scaling=st.none() | ONE,
    older=st.fixed_dictionaries({}, optional={"rope_theta": BASES, "rope_local_base_freq": BASES}),
)
def test_older_keys_of_gemma_3_mean_what_transformers_takes_them_for(
    types: list[str], scaling: dict[str, Any] | None, older: dict[str, Any]
) -> None:
    before = gemma(types, rope_scaling=scaling, **older)
    assert shape_from_config(before) == parsed_shape(before)


@settings(deadline=None)
@given(
    types=st.permutations(["full_attention", "sliding_attention"]),
    whole=ONE,
    windowed=ONE,
    base=BASES,
)
def test_other_families_may_have_them_too(
    types: list[str], whole: dict[str, Any], windowed: dict[str, Any], base: float
) -> None:
    tables = {"full_attention": whole, "sliding_attention": windowed}
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    both = {
        "model_type": "qwen2",
        **sizes,
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "layer_types": types,
        "rope_parameters": tables,
        "rope_theta": base,
    }
    shape = shape_from_config(both)
    assert shape == parsed_shape(both)
    assert len(shape.rotaries) == 2


def table(**own: object) -> Rotary:
    return rotary_table({"rope_type": "default", "rope_theta": 1e4, **own}, 8, 100, "here")


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"rope_type": "linear"}, "'linear' needs factor"),
        ({"rope_type": "linear", "factor": 0}, "'linear' needs factor, a number above 0"),
        ({"rope_type": "linear", "factor": "2"}, "factor is '2'; it should be a number"),
        ({"rope_type": "linear", "factor": True}, "factor is True"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor is nan"),
        ({"rope_type": "dynamic"}, "'dynamic' needs factor"),
        ({"rope_type": "yarn", "factor": 2.0}, "'yarn' needs original_max_position_embeddings"),
        ({"rope_type": ["yarn"]}, "does not run; these do: default, linear"),
        ({"rope_type": None}, "rope_type None does not run"),
        ({"rope_theta": None}, "needs rope_theta"),
        ({"rope_theta": 1.0}, "rope_theta is 1.0; it should be above 1"),
        ({"rope_theta": "1e4"}, "rope_theta is '1e4'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "high_freq_factor 4.0 should be above low_freq_factor 4.0",
        ),
    ],
)
def test_a_parameter_that_is_missing_or_wrong_is_named(own: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"here: .*{named}"):
        table(**own)


def test_a_table_begins_with_one_turn_in_two_pi_tokens() -> None:
    assert table().inverse_frequencies == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_only_yarn_extends_the_context() -> None:
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 60}
    linear = {"rope_type": "linear", "factor": 9.0}
    assert context_length(100, [linear], "here") == 100
    assert context_length(100, [linear, stretched], "here") == 240
    assert context_length(1000, [stretched], "here") == 1000


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"rope_parameters": {"rope_theta": 1e4}}, "an object for each type of layer"),
        ({"rope_parameters": {"full_attention": 3}}, "full_attention is 3; it should be an object"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; it should be an object"),
        ({"rope_scaling": {"rope_type": "none_such"}}, "none_such"),
    ],
)
def test_keys_that_do_not_fit_gemma_3_are_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        shape_from_config(gemma(["full_attention", "sliding_attention"], **keys))


def test_a_type_of_layers_without_a_table_is_named() -> None:
    lacking = {"model_type": "gemma2", "rope_parameters": {"full_attention": {"rope_theta": 1e4}}}
    with pytest.raises(UsageError, match="nothing for sliding_attention"):
        shape_from_config(lacking)
