"""A small model folder, made once; and a way to make variants of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from practicum.policy.model.family import Json, read_config
from practicum.policy.model.tiny import tiny_config, write_tiny
from practicum.policy.model.weights import load_transformer, save_transformer


def sharpened(folder: Path) -> None:
    """Larger weights, so that the model has opinions and an error in any of them shows."""
    model = load_transformer(folder, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.2, 0.2, len(parameter)))
    save_transformer(model, folder, source=folder)


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a small model; keywords change its configuration, None removes a key."""

    def make(**changes: object) -> Path:
        folder = tmp_path_factory.mktemp("model")
        config: Json = tiny_config(hidden_size=48, num_layers=2) | changes
        write_tiny(folder, config={k: v for k, v in config.items() if v is not None})
        sharpened(folder)
        assert read_config(folder)["model_type"] == "llama"
        return folder

    return make


@pytest.fixture(scope="session")
def folder(make_folder: Callable[..., Path]) -> Path:
    return make_folder()
