"""Resumed training is the same training, and a folder that does not fit changes nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from practicum.config import TrainConfig
from practicum.errors import StoreError
from practicum.policy.train.trainer import RLTrainer

from .models import L_MAX, LocalPolicy, random_step, small_model

REWARDS = [[1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 0.0, 0.0]]


def make(seed: int = 0, dtype: torch.dtype = torch.bfloat16, *, tied: bool = True) -> RLTrainer:
    config = TrainConfig(learning_rate=1e-3, warmup_steps=6, weight_decay=0.01)
    model = small_model(seed, dtype, tied=tied)
    return RLTrainer(model, config, temperature=1.0, max_response_tokens=L_MAX)


def train(trainer: RLTrainer, first: int, last: int) -> list[tuple[str, dict[str, float]]]:
    """Steps `first` .. `last` - 1; digest and deterministic metrics after each."""
    policy = LocalPolicy(trainer.version)
    history: list[tuple[str, dict[str, float]]] = []
    for step in range(first, last):
        metrics = trainer.update(policy, None, *random_step(step, REWARDS))
        kept = {key: value for key, value in metrics.items() if not key.startswith("time/")}
        history.append((trainer.digest(), kept))
    return history


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_resumed_training_is_bit_identical(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    """The break is within warm-up: moments, step counts and learning rate all have to continue."""
    straight = make(dtype=dtype, tied=tied)
    history = train(straight, 0, 6)
    broken = make(dtype=dtype, tied=tied)
    train(broken, 0, 3)
    broken.save(tmp_path)
    resumed = make(seed=9, dtype=dtype, tied=tied)
    resumed.load(tmp_path)
    assert resumed.version == 3
    assert resumed.digest() == broken.digest()
    assert train(resumed, 3, 6) == history[3:]


def test_loading_restores_the_weights_that_run(tmp_path: Path) -> None:
    trained = make()
    train(trained, 0, 2)
    trained.save(tmp_path)
    model = small_model(9, torch.bfloat16)
    other = RLTrainer(model, TrainConfig(), temperature=1.0, max_response_tokens=L_MAX)
    other.load(tmp_path)
    working = dict(model.named_parameters())
    for name, master in trained.weights.items():
        assert torch.equal(working[name], master.to(working[name].dtype)), name


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    trainer = make()
    train(trainer, 0, 1)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        trainer.save(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == [
        "exp_avg.safetensors",
        "exp_avg_sq.safetensors",
        "trainer.json",
        "weights.safetensors",
    ]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def lose_a_file(folder: Path) -> None:
    (folder / "exp_avg.safetensors").unlink()


def lose_the_counters(folder: Path) -> None:
    (folder / "trainer.json").unlink()


def cut_a_file_short(folder: Path) -> None:
    path = folder / "exp_avg_sq.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(folder: Path) -> None:
    path = folder / "exp_avg_sq.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def rename_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    tensors["norms"] = tensors.pop("norm")
    save_file(tensors, folder / "weights.safetensors")


def reshape_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "exp_avg.safetensors")
    tensors["norm"] = tensors["norm"][None]
    save_file(tensors, folder / "exp_avg.safetensors")


def change_the_format(folder: Path) -> None:
    record = json.loads((folder / "trainer.json").read_text())
    (folder / "trainer.json").write_text(json.dumps(record | {"format": 99}))


def lose_a_counter(folder: Path) -> None:
    record = json.loads((folder / "trainer.json").read_text())
    del record["num_updates"]
    (folder / "trainer.json").write_text(json.dumps(record))


def write_no_json(folder: Path) -> None:
    (folder / "trainer.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_file, "exp_avg.safetensors"),
        (lose_the_counters, "trainer.json"),
        (cut_a_file_short, "exp_avg_sq.safetensors"),
        (flip_a_bit, "exp_avg_sq.safetensors is damaged"),
        (rename_a_tensor, "norm should be .* is absent"),
        (reshape_a_tensor, r"norm should be torch.float32 \[32\], is torch.float32 \[1, 32\]"),
        (change_the_format, "not a trainer's state of format 1"),
        (lose_a_counter, "lacks version, num_updates"),
        (write_no_json, "cannot read"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_and_changes_nothing(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    trained = make()
    train(trained, 0, 2)
    trained.save(tmp_path)
    damage(tmp_path)
    other = make(seed=9)
    before = other.digest()
    with pytest.raises(StoreError, match=message):
        other.load(tmp_path)
    assert other.digest() == before
    assert other.version == 0


def test_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path)
    with pytest.raises(StoreError, match=r"untied_head should be .* is absent"):
        make(tied=False).load(tmp_path)
