"""The engine's tokens and the trainer's: the same bits, whatever path led to them."""

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from practicum.policy.model.dense import DenseMemory
from practicum.policy.model.family import shape_from_config
from practicum.policy.model.forest import plant
from practicum.policy.model.head import distribution
from practicum.policy.model.transformer import Transformer
from practicum.policy.train.logprobs import token_logprobs
from practicum.policy.train.recompute import hidden_states

from .model.families import FAMILIES
from .model.needs import needs_kernels, threads, without_kernels
from .played import Play, random_group

bf16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Setting:
    """A small model of some family, and what is played on it."""

    config: dict[str, object]
    seed: int
    temperature: float

    def model(self, dtype: torch.dtype) -> Transformer:
        """Random weights large enough that the model has opinions; the same in every dtype."""
        model = Transformer(shape_from_config(self.config), dtype)
        generator = torch.Generator().manual_seed(self.seed)
        plus_one = model.shape.norms.plus_one
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if parameter.dim() == 1:
                    centre = 0.0 if plus_one or name.endswith("bias") else 1.0
                    parameter.copy_(centre + 0.2 * noise)
                else:
                    parameter.copy_(noise * parameter.shape[-1] ** -0.5)
        return model


@st.composite
def random_settings(draw: st.DrawFn) -> Setting:
    """Any family in sizes for which there are kernels."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    num_kv = draw(st.integers(1, 2))
    num_heads = num_kv * draw(st.integers(1, 3))
    config: dict[str, object] = {
        **FAMILIES[family],
        "model_type": family,
        "vocab_size": draw(st.sampled_from([50, 259])),
        "hidden_size": num_heads * 32,
        "intermediate_size": draw(st.sampled_from([32, 96])),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv,
        "max_position_embeddings": 512,
        "head_dim": 32,
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": 0,
    }
    if family in ("llama", "smollm3", "qwen3"):
        config["attention_bias"] = draw(st.booleans())
    if "sliding_window" in FAMILIES[family]:
        config["sliding_window"] = draw(st.integers(1, 150))
    if family == "qwen3_moe":
        config["moe_intermediate_size"] = 32
    temperature = draw(st.sampled_from([1.0, 0.7]))
    return Setting(config, draw(st.integers(0, 10_000)), temperature)


def play(setting: Setting, model: Transformer) -> tuple[list[list[int]], list[Tensor]]:
    """Random sequences and the hidden states that the engine computes for them."""
    draw = random.Random(setting.seed)
    sequences = random_group(draw, model.shape.vocab_size)
    return sequences, Play(model, sequences, draw).run()


def engine_logprobs(model: Transformer, hidden: Tensor, tokens: list[int], t: float) -> Tensor:
    """float64 [L - 1]: of every token but the first, a few rows at a time as an engine has them."""
    parts: list[Tensor] = []
    for rows, targets in zip(
        hidden[:-1].split(5), torch.tensor(tokens[1:], dtype=torch.int64).split(5)
    ):
        temperatures = torch.full((len(rows),), t, dtype=torch.float64)
        there = distribution(rows, model.head, temperatures, model.shape.logit_softcap)
        parts.append(there.logprobs(torch.arange(len(rows)), targets))
    return torch.cat([torch.zeros(0, dtype=torch.float64), *parts])


def trainer_logprobs(
    model: Transformer, sequences: list[list[int]], t: float, keep_tokens: int = 10_000
) -> tuple[list[Tensor], list[Tensor]]:
    """The trainer's hidden states [L, D] and float32 log-probs [L - 1] of every sequence."""
    forest = plant(sequences)
    hidden = hidden_states(model, forest, keep_tokens)
    nodes = [torch.from_numpy(path) for path in forest.paths]
    rows = torch.cat([path[:-1] for path in nodes])
    targets = torch.cat([torch.tensor(tokens[1:]) for tokens in sequences]).to(torch.int64)
    found = token_logprobs(hidden, model.head, rows, targets, t, model.shape.logit_softcap)
    lengths = [len(tokens) - 1 for tokens in sequences]
    return [hidden[path] for path in nodes], list(found.logprobs_M.detach().split(lengths))


@needs_kernels
@given(setting=random_settings())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_engine_and_trainer_agree_bit_for_bit_in_bfloat16(setting: Setting) -> None:
    model = setting.model(bf16)
    sequences, played = play(setting, model)
    keep_tokens = setting.seed % 2 * 10_000  # layers kept, or run again
    hidden, logprobs = trainer_logprobs(model, sequences, setting.temperature, keep_tokens)
    for tokens, theirs, ours, expected in zip(sequences, played, hidden, logprobs):
        assert torch.equal(theirs, ours)
        found = engine_logprobs(model, theirs, tokens, setting.temperature)
        assert torch.equal(found.float(), expected)
        assert found.isfinite().all()


@given(setting=random_settings())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_engine_trainer_and_definition_agree_to_1e_5_in_float32(setting: Setting) -> None:
    model = setting.model(torch.float32)
    sequences, played = play(setting, model)
    _, logprobs = trainer_logprobs(model, sequences, setting.temperature)
    for tokens, hidden, expected in zip(sequences, played, logprobs):
        found = engine_logprobs(model, hidden, tokens, setting.temperature)
        torch.testing.assert_close(found, expected.double(), rtol=0, atol=1e-5)
        with torch.no_grad():
            whole = model(torch.tensor(tokens), torch.arange(len(tokens)), DenseMemory())
        defined = engine_logprobs(model, whole, tokens, setting.temperature)
        torch.testing.assert_close(found, defined, rtol=0, atol=1e-5)


PLAIN = Setting(
    {
        "model_type": "llama",
        "vocab_size": 259,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    },
    seed=2,
    temperature=1.0,
)


def test_without_kernels_bfloat16_agrees_to_its_rounding() -> None:
    """No promise of bits: the products of some libraries depend on the number of rows."""
    model, wide = PLAIN.model(bf16), PLAIN.model(torch.float32)
    for parameter, rounded in zip(wide.parameters(), model.parameters()):
        parameter.data.copy_(rounded)
    with without_kernels():
        sequences, played = play(PLAIN, model)
        _, logprobs = trainer_logprobs(model, sequences, 1.0)
        found = [engine_logprobs(model, h, s, 1.0) for h, s in zip(played, sequences)]
    _, exact = trainer_logprobs(wide, sequences, 1.0)
    apart = (torch.cat(found) - torch.cat(logprobs)).abs()
    rounding = (torch.cat(logprobs) - torch.cat(exact)).abs()
    assert apart.mean() <= rounding.mean()
    assert rounding.mean() < 0.05


@needs_kernels
def test_kernels_are_as_close_to_the_exact_model_as_the_plain_forms() -> None:
    model, wide = PLAIN.model(bf16), PLAIN.model(torch.float32)
    for parameter, rounded in zip(wide.parameters(), model.parameters()):
        parameter.data.copy_(rounded)
    sequences = random_group(random.Random(5), 259)
    exact = torch.cat(trainer_logprobs(wide, sequences, 1.0)[1])
    compiled = torch.cat(trainer_logprobs(model, sequences, 1.0)[1])
    with without_kernels():
        plain = torch.cat(trainer_logprobs(model, sequences, 1.0)[1])
    assert (compiled - exact).abs().mean() < 1.25 * (plain - exact).abs().mean()


@needs_kernels
def test_numbers_of_threads_and_orders_of_sequences_change_no_bit() -> None:
    model = PLAIN.model(bf16)
    sequences = random_group(random.Random(7), 259)
    found: list[list[Tensor]] = []
    for count in (1, 2):
        with threads(count):
            found.append(Play(model, sequences, random.Random(count)).run())
            found.append(trainer_logprobs(model, sequences, 1.0)[0])
    backwards, _ = trainer_logprobs(model, sequences[::-1], 1.0)
    found.append(backwards[::-1])
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others))


@pytest.mark.parametrize("dtype", [bf16, torch.float32])
def test_a_model_of_sizes_without_kernels_runs_on_both_sides(dtype: torch.dtype) -> None:
    odd = Setting({**PLAIN.config, "hidden_size": 60, "intermediate_size": 70}, 3, 1.0)
    model = odd.model(dtype)
    sequences, played = play(odd, model)
    _, logprobs = trainer_logprobs(model, sequences, 1.0)
    found = torch.cat([engine_logprobs(model, h, s, 1.0) for h, s in zip(played, sequences)])
    apart = (found - torch.cat(logprobs)).abs()
    assert apart.max() < (0.2 if dtype == bf16 else 1e-5)
