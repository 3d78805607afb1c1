"""A GGUF file becomes the model folder it was made from."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from practicum.errors import UsageError
from practicum.policy.model.family import read_config, shape_from_config
from practicum.policy.model.gguf_import import import_gguf
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.types import Message

from .gguf_files import write_gguf


@pytest.fixture(scope="module")
def source(make_folder: Callable[..., Path]) -> Path:
    """Rows of some matrices divide into blocks of 32 and are quantised, the others are not."""
    return make_folder(vocab_size=261, rope_theta=5e5)


def imported(source: Path, folder: Path, architecture: str = "llama") -> Path:
    write_gguf(source, folder / "model.gguf", architecture)
    target = folder / "imported"
    target.mkdir()
    import_gguf(folder / "model.gguf", target)
    return target


def test_weights_come_back_in_their_own_order(source: Path, tmp_path: Path) -> None:
    before = load_file(source / "model.safetensors")
    after = load_file(imported(source, tmp_path) / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        step = tensor.abs().max() / 127 if tensor.shape[-1] % 32 == 0 else 0.0
        assert (tensor - after[name]).abs().max() <= step, name


def test_the_configuration_comes_back(source: Path, tmp_path: Path) -> None:
    target = imported(source, tmp_path)
    before, after = (shape_from_config(read_config(folder)) for folder in (source, target))
    assert before == after


def test_values_are_exactly_those_that_transformers_reads(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF weights only with accelerate")
    target = imported(source, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    ).state_dict()
    for name, tensor in load_file(target / "model.safetensors").items():
        assert torch.equal(tensor, theirs[name]), name


def test_tokenizer_and_template_come_along(source: Path, tmp_path: Path) -> None:
    target = imported(source, tmp_path)
    tokens = Tokens(target)
    assert tokens.eos_ids == {258, 259}
    chat = [Message("user", "3+4=")]
    assert tokens.render(chat) == Tokens(source).render(chat)
    assert load_transformer(target).shape.vocab_size > tokens.largest_id


def test_another_architecture_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="qwen2"):
        imported(source, tmp_path, "qwen2")
