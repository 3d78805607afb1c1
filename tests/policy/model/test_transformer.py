"""Our decoder against transformers' own: logits and gradients of every family and variant."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from practicum.policy.model.dense import DenseMemory
from practicum.policy.model.layout import layout
from practicum.policy.model.shape import AttentionRule
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer

from .families import FAMILIES, VOCAB, reference, write_family

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
NUM_SEQUENCES, LENGTH = 2, 60
TOKENS = torch.randint(VOCAB, (NUM_SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(1))

VARIANTS: list[tuple[str, dict[str, object]]] = [
    *((family, {}) for family in FAMILIES),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": 6}),
    ("llama", {"num_key_value_heads": 1}),
    ("llama", {"head_dim": 16}),
    ("llama", {"rms_norm_eps": 1e-2}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}}),
    ("llama", {"rope_parameters": {"rope_theta": 1e4, **LLAMA3}}),
    ("llama", {"rope_parameters": {"rope_theta": 1e4, **YARN}}),
    ("llama", {"rope_parameters": {"rope_theta": 1e4, **YARN, "attention_factor": 1.5}}),
    (
        "llama",
        {"rope_parameters": {"rope_theta": 1e4, **YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    ("smollm3", {"no_rope_layers": [0, 1, 1, 0], "attention_bias": True}),
    ("qwen2", {"rope_parameters": {"rope_theta": 1e6, **YARN}, "use_sliding_window": False}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3_moe", {"norm_topk_prob": False, "attention_bias": True}),
    ("qwen3_moe", {"mlp_only_layers": [3], "decoder_sparse_step": 2}),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 5}),
    ("mistral", {"sliding_window": None, "head_dim": None}),
    (
        "mixtral",
        {"sliding_window": 5, "head_dim": 8, "rope_parameters": {"rope_theta": 1e4, **YARN}},
    ),
    ("mixtral", {"num_experts_per_tok": 1}),
    ("gemma2", {"tie_word_embeddings": False, "attn_logit_softcapping": None}),
    ("gemma3_text", {"final_logit_softcapping": 3.0, "attention_bias": True}),
    ("gemma3_text", {"layer_types": ["full_attention"] * 4}),
]


def named(variant: object) -> str:
    return ",".join(variant) if isinstance(variant, dict) else str(variant)


def our_logits(model: Transformer, tokens: Tensor = TOKENS) -> Tensor:
    positions = torch.arange(tokens.shape[1]).repeat(len(tokens))
    hidden = model(tokens.flatten(), positions, DenseMemory(len(tokens)))
    return model.logits(hidden).unflatten(0, tokens.shape)


@pytest.mark.parametrize(("family", "changes"), VARIANTS, ids=named)
def test_logits_equal_those_of_transformers(
    tmp_path: Path, family: str, changes: dict[str, object]
) -> None:
    write_family(tmp_path, family, **changes)
    with torch.no_grad():
        ours = our_logits(load_transformer(tmp_path, torch.float32))
        theirs = reference(tmp_path)(TOKENS).logits
    assert theirs.std() > 0.5, "the model says nothing, so the comparison shows nothing"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


@st.composite
def configurations(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    """A family and random sizes that fit together."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    num_kv_heads = draw(st.integers(1, 3))
    num_heads = num_kv_heads * draw(st.integers(1, 3))
    changes: dict[str, object] = {
        "num_hidden_layers": draw(st.integers(1, 5)),
        "num_key_value_heads": num_kv_heads,
        "num_attention_heads": num_heads,
        "hidden_size": num_heads * draw(st.sampled_from([4, 8, 10])),
        "intermediate_size": draw(st.integers(16, 60)),
        "tie_word_embeddings": draw(st.booleans()),
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-3])),
    }
    if "head_dim" in FAMILIES[family]:
        changes["head_dim"] = draw(st.sampled_from([4, 8, 12, 32]))
    if "sliding_window" in FAMILIES[family]:
        changes["sliding_window"] = draw(st.integers(1, LENGTH + 10))
    if family == "mixtral":
        changes["num_experts_per_tok"] = draw(st.integers(1, 5))
    if family == "qwen3_moe":
        changes["num_experts_per_tok"] = draw(st.integers(1, 6))
        changes["norm_topk_prob"] = draw(st.booleans())
    return family, changes


@given(configuration=configurations())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_configurations_agree(configuration: tuple[str, dict[str, object]]) -> None:
    family, changes = configuration
    with TemporaryDirectory() as folder:
        write_family(Path(folder), family, **changes)
        with torch.no_grad():
            ours = our_logits(load_transformer(Path(folder), torch.float32))
            theirs = reference(Path(folder))(TOKENS).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-5)


def test_a_mistral_with_layer_types_slides_where_they_say(tmp_path: Path) -> None:
    """As AutoModel reads it; the class for Mistral alone would slide everywhere."""
    write_family(tmp_path, "mistral")
    plain = our_logits(load_transformer(tmp_path, torch.float32))
    types = ["full_attention", "sliding_attention"] * 2
    write_family(tmp_path, "mistral", layer_types=types)
    with torch.no_grad():
        ours = our_logits(load_transformer(tmp_path, torch.float32))
        theirs = reference(tmp_path)(TOKENS).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    assert (ours - plain).abs().max() > 0.1


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gemma3_text", "qwen3_moe"])
def test_gradients_equal_those_of_transformers(tmp_path: Path, family: str) -> None:
    biases = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    write_family(tmp_path, family, **biases)
    model, other = load_transformer(tmp_path, torch.float32), reference(tmp_path)
    weights = torch.randn(NUM_SEQUENCES, LENGTH, VOCAB, generator=torch.Generator().manual_seed(2))
    (our_logits(model).log_softmax(-1) * weights).mean().backward()
    (other(TOKENS).logits.log_softmax(-1) * weights).mean().backward()
    theirs = {name: parameter.grad for name, parameter in other.named_parameters()}
    ours = dict(model.named_parameters())
    for name, parts in layout(model.shape, fused=True).items():
        expected = torch.cat([theirs[part.name] for part in parts])
        gradient = ours.pop(name).grad
        assert gradient is not None, name
        assert (gradient - expected).abs().max() < 2e-5 * expected.abs().max(), name
    assert not ours, "every parameter of ours was compared"


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_close(tmp_path: Path, family: str) -> None:
    write_family(tmp_path, family, initializer_range=0.05)
    with torch.no_grad():
        exact, rounded = (
            our_logits(load_transformer(tmp_path, dtype))
            for dtype in (torch.float32, torch.bfloat16)
        )
    assert rounded.dtype == torch.float32
    assert 0 < (exact - rounded).abs().mean() < 0.02 * exact.std()


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_of_a_batch_do_not_see_each_other(tmp_path: Path, family: str) -> None:
    write_family(tmp_path, family)
    model = load_transformer(tmp_path, torch.float32)
    with torch.no_grad():
        together, alone = our_logits(model), our_logits(model, TOKENS[1:])
    torch.testing.assert_close(together[1:], alone, rtol=0, atol=2e-5)


class Listening:
    """Notes what reaches the memory."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, torch.dtype, tuple[int, ...], AttentionRule]] = []

    def attend(
        self, layer: int, query_THC: Tensor, key_TKC: Tensor, value_TKC: Tensor, rule: AttentionRule
    ) -> Tensor:
        assert query_THC.dtype == key_TKC.dtype == value_TKC.dtype
        assert key_TKC.shape == value_TKC.shape
        self.heard.append((layer, query_THC.dtype, tuple(key_TKC.shape), rule))
        return DenseMemory().attend(layer, query_THC, key_TKC, value_TKC, rule)


def test_the_memory_gets_every_layer_in_the_models_dtype_with_its_own_rule(tmp_path: Path) -> None:
    write_family(tmp_path, "gemma2")
    memory = Listening()
    load_transformer(tmp_path)(TOKENS[0], torch.arange(LENGTH), memory)
    windows = (5, None, 5, None)
    assert memory.heard == [
        (layer, torch.bfloat16, (LENGTH, 2, 16), AttentionRule(24**-0.5, 5.0, window))
        for layer, window in enumerate(windows)
    ]


def test_a_token_sees_itself_and_the_rest_of_its_window(tmp_path: Path) -> None:
    """With one layer of window 3, a token changes its own logits and those of the next two."""
    write_family(tmp_path, "mistral", sliding_window=3, num_hidden_layers=1)
    model = load_transformer(tmp_path, torch.float32)
    changed = TOKENS[:1].clone()
    changed[0, 10] = (changed[0, 10] + 1) % VOCAB
    with torch.no_grad():
        moved = (our_logits(model, TOKENS[:1]) - our_logits(model, changed)).abs().amax(-1)[0]
    assert moved.nonzero().flatten().tolist() == [10, 11, 12]
