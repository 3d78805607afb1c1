"""Weights in and out: exact both ways, readable by others, and strict about what does not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from practicum.errors import UsageError
from practicum.policy.model import weights
from practicum.policy.model.weights import load_transformer, reset, save_transformer

from .families import FAMILIES, VOCAB, reference, write_family

Edit = Callable[[dict[str, torch.Tensor]], object]


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "model"))


def edit(folder: Path, change: Edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_is_bit_identical(
    make_folder: Callable[..., Path], tmp_path: Path, tied: bool
) -> None:
    folder = make_folder(tie_word_embeddings=tied)
    save_transformer(load_transformer(folder, torch.float32), tmp_path, source=folder)
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path))
    assert before.keys() == after.keys()
    assert ("lm_head.weight" in after) != tied
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_masters_are_exported_in_place_of_rounded_weights(folder: Path, tmp_path: Path) -> None:
    """A bfloat16 model that is trained through float32 masters loses nothing in an export."""
    model = load_transformer(folder, torch.bfloat16)
    exact = load_transformer(folder, torch.float32)
    masters = {name: parameter.detach() for name, parameter in exact.named_parameters()}
    save_transformer(model, tmp_path, source=folder, masters=masters)
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_export_can_be_rounded(folder: Path, tmp_path: Path) -> None:
    model = load_transformer(folder, torch.float32)
    save_transformer(model, tmp_path, source=folder, dtype=torch.bfloat16)
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    again = load_transformer(tmp_path, torch.bfloat16)
    assert torch.equal(again.layers[0].qkv, load_transformer(folder, torch.bfloat16).layers[0].qkv)


def test_others_load_what_we_export(folder: Path, tmp_path: Path) -> None:
    save_transformer(load_transformer(folder, torch.float32), tmp_path, source=folder)
    token_ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        one, other = (
            AutoModelForCausalLM.from_pretrained(f)(token_ids).logits for f in (folder, tmp_path)
        )
    assert torch.equal(one, other)
    assert AutoTokenizer.from_pretrained(tmp_path).decode([104, 105]) == "hi"
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_of_every_family_is_bit_identical_and_whole_for_others(
    tmp_path: Path, family: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_family(source, family)
    save_transformer(load_transformer(source, torch.float32), target, source=source)
    before, after = (load_file(f / "model.safetensors") for f in (source, target))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    token_ids = torch.arange(VOCAB)[None, :40]
    with torch.no_grad():
        one, other = (reference(folder)(token_ids).logits for folder in (source, target))
    assert torch.equal(one, other)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_stored_as_one_tensor_load_alike(tmp_path: Path, family: str) -> None:
    one_by_one, fused = tmp_path / "one_by_one", tmp_path / "fused"
    write_family(one_by_one, family)
    write_family(fused, family, fused=True)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    names = [load_file(f / "model.safetensors").keys() for f in (one_by_one, fused)]
    assert [name in found for found in names] == [False, True]
    left, right = (dict(load_transformer(f).named_parameters()) for f in (one_by_one, fused))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_damaged_expert_is_named(tmp_path: Path) -> None:
    write_family(tmp_path, "mixtral")
    name = "model.layers.2.block_sparse_moe.experts.3.w2.weight"
    edit(tmp_path, put(name, 48, 80, value=float("nan")))
    with pytest.raises(UsageError, match=rf"{name} holds NaN"):
        load_transformer(tmp_path)


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "qwen3_moe"])
def test_fresh_norms_are_one_and_fresh_biases_zero(tmp_path: Path, family: str) -> None:
    write_family(tmp_path, family)
    model = load_transformer(tmp_path, torch.float32)
    reset(model, 0)
    stored = 0.0 if family.startswith("gemma") else 1.0
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert set(parameter.tolist()) == {0.0 if name.endswith("bias") else stored}, name


def test_shards_load_like_one_file(folder: Path, copied: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(copied)
    (copied / "model.safetensors").unlink()
    model.save_pretrained(copied, max_shard_size="50KB")
    assert len(list(copied.glob("model-*.safetensors"))) > 1
    one, other = (dict(load_transformer(f).named_parameters()) for f in (folder, copied))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_file_may_be_opened_anew_between_any_two_tensors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_transformer(folder, torch.float32).state_dict()
    monkeypatch.setattr(weights, "FORGOTTEN", 0)
    for name, tensor in load_transformer(folder, torch.float32).state_dict().items():
        assert torch.equal(tensor, before[name])


def test_half_precision_files_load_exactly(copied: Path) -> None:
    edit(copied, lambda tensors: tensors.update({n: t.half() for n, t in tensors.items()}))
    stored = load_file(copied / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(load_transformer(copied, torch.float32).layers[1].down, stored.float())


def drop(name: str) -> Edit:
    return lambda tensors: tensors.pop(name)


def put(name: str, *shape: int, value: float = 0.0) -> Edit:
    return lambda tensors: tensors.update({name: torch.full(shape, value)})


DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop(DOWN), rf"lacks 1 tensors: {DOWN}"),
        (put("model.extra.weight", 3), r"has besides 1 tensors: model\.extra\.weight"),
        (put(DOWN, 48, 127), rf"{DOWN} has shape \(48, 127\).*\(48, 128\)"),
        (put(DOWN, 48, 128, value=float("nan")), rf"{DOWN} holds NaN"),
        (put(DOWN, 48, 128, value=float("-inf")), rf"{DOWN} holds NaN or infinity"),
        (lambda tensors: tensors.update({DOWN: tensors[DOWN].to(torch.int8)}), rf"{DOWN} is.*int8"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(copied: Path, change: Edit, named: str) -> None:
    edit(copied, change)
    with pytest.raises(UsageError, match=named):
        load_transformer(copied)


def test_sizes_that_are_not_stored_are_refused_before_memory_is_taken(copied: Path) -> None:
    path = copied / "config.json"
    config = json.loads(path.read_text()) | {"vocab_size": 1 << 24, "hidden_size": 1 << 24}
    path.write_text(json.dumps(config))  # 512 TiB of embeddings
    with pytest.raises(UsageError, match=r"has shape \(.*asks for \(16777216"):
        load_transformer(copied)


def test_a_config_nested_without_end_is_refused(copied: Path) -> None:
    (copied / "config.json").write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    with pytest.raises(UsageError, match=r"config\.json.*nested too deeply"):
        load_transformer(copied)


def test_what_can_be_derived_may_be_stored_too(copied: Path) -> None:
    edit(copied, put("model.layers.0.self_attn.rotary_emb.inv_freq", 4))
    edit(copied, put("lm_head.weight", 259, 48))
    load_transformer(copied)


def test_pickled_weights_are_refused_unopened(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(UsageError, match="pickles"):
        load_transformer(copied)


def test_a_cut_off_file_is_refused(copied: Path) -> None:
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"model\.safetensors is not readable"):
        load_transformer(copied)


def test_a_missing_shard_is_named(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "../../secret.safetensors"}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"names secret\.safetensors, which is not in the folder"):
        load_transformer(copied)


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_missing_file_is_named(copied: Path, missing: str) -> None:
    (copied / missing).unlink()
    with pytest.raises(UsageError, match=missing):
        load_transformer(copied)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no model folder .*nowhere"):
        load_transformer(tmp_path / "nowhere")


def test_fresh_weights_depend_on_the_seed_alone(folder: Path) -> None:
    one, same, other = (load_transformer(folder, torch.float32) for _ in range(3))
    reset(one, 7)
    reset(same, 7)
    reset(other, 8)
    assert torch.equal(one.layers[1].down, same.layers[1].down)
    assert not torch.equal(one.layers[1].down, other.layers[1].down)
    assert torch.equal(one.norm, torch.ones(48))
    assert 0.018 < one.embedding.std() < 0.022
