import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from practicum.policy.engine.adapters.folders import HEAD, has_separate_head, with_separate_head

EMBEDDING = "model.embed_tokens.weight"


def test_a_tied_head_is_stored_once_more_and_goes_again(tiny_folder: Path):
    assert not has_separate_head(tiny_folder)
    before = sorted(tiny_folder.parent.iterdir())
    with with_separate_head(tiny_folder) as folder:
        stored = {
            name: value
            for path in folder.glob("*.safetensors")
            for name, value in load_file(path).items()
        }
        assert torch.equal(stored[HEAD], stored[EMBEDDING])
        assert (folder / "config.json").read_text() == (tiny_folder / "config.json").read_text()
    assert sorted(tiny_folder.parent.iterdir()) == before


def test_a_head_of_its_own_is_left_alone(tiny_folder: Path, tmp_path: Path):
    folder = tmp_path / "untied"
    shutil.copytree(tiny_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, HEAD: tensors[EMBEDDING] + 1}, folder / "model.safetensors")
    with with_separate_head(folder) as same:
        assert same == folder


def test_an_index_names_the_head(tiny_folder: Path, tmp_path: Path):
    folder = tmp_path / "sharded"
    shutil.copytree(tiny_folder, folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    with safe_open(folder / "model-1.safetensors", framework="pt") as stored:
        names = list(stored.keys())
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-1.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with with_separate_head(folder) as made:
        assert has_separate_head(made)
