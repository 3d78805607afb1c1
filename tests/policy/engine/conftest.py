"""A small float32 model with opinions, and engines on it."""

from pathlib import Path

import pytest
import torch

from practicum.policy.engine import Engine
from practicum.policy.model.tiny import tiny_config, write_tiny
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer, save_transformer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny(folder, config=tiny_config(hidden_size=48, num_layers=2, context_length=128))
    model = load_transformer(folder, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
        model.norm.mul_(2.0)
    save_transformer(model, folder, source=folder)
    return folder


@pytest.fixture(scope="session")
def tokens(folder: Path) -> Tokens:
    return Tokens(folder)


@pytest.fixture(scope="session")
def model(folder: Path) -> Transformer:
    """Shared: do not change its weights."""
    return load_transformer(folder, torch.float32)


@pytest.fixture
def engine(model: Transformer, tokens: Tokens) -> Engine:
    return Engine(model, tokens, name="small")
