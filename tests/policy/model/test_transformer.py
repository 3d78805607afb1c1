"""Our decoder against transformers' own, on folders of every supported shape."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from practicum.policy.model.forest import plant
from practicum.policy.model.weights import load_transformer

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1},
        {"head_dim": 16},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": LLAMA3},
        {"rms_norm_eps": 1e-3},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_logits_equal_those_of_transformers(
    make_folder: Callable[..., Path], changes: dict[str, object]
) -> None:
    folder = make_folder(**changes)
    token_ids = torch.randint(0, 259, (1, 90), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model = load_transformer(folder, torch.float32)
        ours = model.logits(model(plant(token_ids.tolist())))
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(token_ids)
    assert theirs.logits.std() > 0.1, "the model says nothing, so the comparison shows nothing"
    torch.testing.assert_close(ours, theirs.logits[0], rtol=0, atol=2e-5)


def test_bfloat16_stays_close_and_its_head_is_float32(folder: Path) -> None:
    token_ids = list(range(40))
    with torch.no_grad():
        exact, rounded = (
            model.logits(model(plant([token_ids])))
            for model in (load_transformer(folder, d) for d in (torch.float32, torch.bfloat16))
        )
    assert rounded.dtype == torch.float32
    assert 0 < (exact - rounded).abs().mean() < 0.05


def test_kept_keys_and_values_are_those_of_every_layer(folder: Path) -> None:
    model = load_transformer(folder, torch.float32)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    model(plant([[1, 2, 3], [1, 2, 4]]), kept)
    assert [key.shape for key, _ in kept] == [(4, 2, 8)] * model.shape.num_layers
    assert all(value.shape == key.shape for key, value in kept)
