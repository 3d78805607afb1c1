"""Which stored tensors make up each of our parameters, for every family.

The one thing to know: loading and saving both walk this table, so they cannot disagree. Queries,
keys and values are one matrix here and three there; all experts of a layer are one tensor here and
three for each expert there (or already one, as newer tools store them on request: `fused`).
"""

from __future__ import annotations

from dataclasses import dataclass

from practicum.policy.model.shape import Experts, Shape


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor. The parts of a parameter are its rows, one part after the other.

    A parameter of all experts has one dimension more than its parts; its rows then run over
    experts and their rows.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.shape[0]


Layout = dict[str, tuple[Part, ...]]
"""Our parameter name -> its parts"""

EXPERT_NAMES = {"mixtral": ("w1", "w3", "w2")}
"""Stored names of an expert's gate, up and down, where they are not the usual."""

FUSED_EXPERTS = ".mlp.experts.gate_up_proj"
"""Ends the name of a tensor that holds the gates and ups of all experts of a layer."""


def layout(shape: Shape, *, fused: bool = False) -> Layout:
    """The table for a model whose experts, if it has any, are stored one by one or `fused`.

    Example:
        `layers.0.qkv` consists of `model.layers.0.self_attn.{q,k,v}_proj.weight`.
    """
    hidden = shape.hidden_size
    table: Layout = {
        "embedding": (Part("model.embed_tokens.weight", (shape.vocab_size, hidden)),),
        "norm": (Part("model.norm.weight", (hidden,)),),
    }
    if not shape.tied_head:
        table["untied_head"] = (Part("lm_head.weight", (shape.vocab_size, hidden)),)
    for index, kind in enumerate(shape.layers):
        there = f"model.layers.{index}."
        parts = _norms(shape, there) | _attention(shape, there + "self_attn.")
        if kind.sparse:
            assert shape.experts is not None
            parts |= (_fused if fused else _experts)(shape, shape.experts, there)
        else:
            parts |= _mlp(shape, there + "mlp.")
        table |= {f"layers.{index}.{name}": value for name, value in parts.items()}
    return table


def _norms(shape: Shape, there: str) -> Layout:
    names = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    if shape.norms.sandwich:
        names = {
            "attention_norm": "input_layernorm",
            "attention_post_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "mlp_post_norm": "post_feedforward_layernorm",
        }
    return {
        ours: (Part(f"{there}{theirs}.weight", (shape.hidden_size,)),)
        for ours, theirs in names.items()
    }


def _attention(shape: Shape, there: str) -> Layout:
    query, key, hidden = shape.query_size, shape.key_size, shape.hidden_size
    sizes = {"q_proj": query, "k_proj": key, "v_proj": key}
    table: Layout = {
        "qkv": tuple(Part(f"{there}{n}.weight", (rows, hidden)) for n, rows in sizes.items()),
        "output": (Part(there + "o_proj.weight", (hidden, query)),),
    }
    if shape.biases.qkv:
        table["qkv_bias"] = tuple(Part(f"{there}{n}.bias", (rows,)) for n, rows in sizes.items())
    if shape.biases.output:
        table["output_bias"] = (Part(there + "o_proj.bias", (hidden,)),)
    if shape.norms.query_key:
        table["query_norm"] = (Part(there + "q_norm.weight", (shape.head_size,)),)
        table["key_norm"] = (Part(there + "k_norm.weight", (shape.head_size,)),)
    return table


def _mlp(shape: Shape, there: str) -> Layout:
    inner, hidden = shape.intermediate_size, shape.hidden_size
    table: Layout = {
        "gate_up": tuple(
            Part(f"{there}{name}.weight", (inner, hidden)) for name in ("gate_proj", "up_proj")
        ),
        "down": (Part(there + "down_proj.weight", (hidden, inner)),),
    }
    if shape.biases.mlp:
        table["gate_up_bias"] = tuple(
            Part(f"{there}{name}.bias", (inner,)) for name in ("gate_proj", "up_proj")
        )
        table["down_bias"] = (Part(there + "down_proj.bias", (hidden,)),)
    return table


def _experts(shape: Shape, experts: Experts, there: str) -> Layout:
    """One by one; the first dimension of ours runs over experts and their rows."""
    inner, hidden = experts.intermediate_size, shape.hidden_size
    there += "block_sparse_moe." if shape.family == "mixtral" else "mlp."
    gate, up, down = EXPERT_NAMES.get(shape.family, ("gate_proj", "up_proj", "down_proj"))
    each = [f"{there}experts.{expert}." for expert in range(experts.count)]
    return {
        "router": (Part(there + "gate.weight", (experts.count, hidden)),),
        "gate_up": tuple(
            Part(f"{expert}{name}.weight", (inner, hidden))
            for expert in each
            for name in (gate, up)
        ),
        "down": tuple(Part(f"{expert}{down}.weight", (hidden, inner)) for expert in each),
    }


def _fused(shape: Shape, experts: Experts, there: str) -> Layout:
    count, inner, hidden = experts.count, experts.intermediate_size, shape.hidden_size
    there += "mlp."
    return {
        "router": (Part(there + "gate.weight", (count, hidden)),),
        "gate_up": (Part(there + "experts.gate_up_proj", (count, 2 * inner, hidden)),),
        "down": (Part(there + "experts.down_proj", (count, hidden, inner)),),
    }
