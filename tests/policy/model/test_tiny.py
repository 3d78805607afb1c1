"""`tiny` is an ordinary model folder, and always the same."""

from pathlib import Path

import torch

from practicum.policy.model.tiny import write_tiny
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.types import Message


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "same", "other")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        folder.mkdir()
        write_tiny(folder, seed=seed)
    one, same, other = ({p.name: p.read_bytes() for p in f.iterdir()} for f in folders)
    assert one == same
    assert one["model.safetensors"] != other["model.safetensors"]


def test_it_is_small_and_loads(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    model = load_transformer(tmp_path, torch.float32)
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 4e6


def test_any_text_is_one_token_per_byte_and_comes_back(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    tokens = Tokens(tmp_path)
    text = "max(3, 14) = ?\n\ttwo  spaces, Grüße, 数 \x00\x7f\xad"
    token_ids = tokens.render([Message("text", text)])
    assert token_ids == list(text.encode())
    assert tokens.decode(token_ids) == text
