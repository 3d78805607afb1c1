"""A model in lower precision beside the exact one, and the choice of a precision."""

import copy
from pathlib import Path

import pytest
import torch

from practicum.errors import UsageError
from practicum.policy.model.calibrate import Calibration
from practicum.policy.model.dense import DenseMemory
from practicum.policy.model.precision import EXACT, Kind, Precision, lower, matrices, uniform
from practicum.policy.model.tiny import write_tiny
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer

TEXTS = [list(range(40)), list(range(200, 100, -3))]


@pytest.fixture
def model(tmp_path: Path) -> Transformer:
    write_tiny(tmp_path)
    return load_transformer(tmp_path, torch.bfloat16)


@torch.inference_mode()
def logits(model: Transformer, token_ids: list[int]) -> torch.Tensor:
    ids = torch.tensor(token_ids)
    return model.logits(model(ids, torch.arange(len(ids)), DenseMemory()))


def test_the_exact_precision_gives_the_models_own_bits(model: Transformer) -> None:
    assert EXACT.exact
    lowered = lower(model, EXACT)
    assert lowered.num_bytes == 0
    assert torch.equal(logits(lowered.model, TEXTS[0]), logits(model, TEXTS[0]))


def test_lowering_leaves_the_model_itself_as_it_was(model: Transformer) -> None:
    before = logits(model, TEXTS[0])
    precision = uniform(model, "w8a8")
    assert not precision.exact
    low = logits(lower(model, precision).model, TEXTS[0])
    assert not torch.equal(low, before)
    torch.testing.assert_close(low, before, rtol=0, atol=0.1)
    assert torch.equal(logits(model, TEXTS[0]), before)


@pytest.mark.parametrize("kind", ["w8a8", "int4"])
def test_a_refresh_takes_over_new_parameters(model: Transformer, kind: Kind) -> None:
    precision = uniform(model, kind)
    lowered = lower(model, precision)
    before = logits(lowered.model, TEXTS[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    lowered.refresh()
    after = logits(lowered.model, TEXTS[0])
    assert not torch.equal(after, before)
    assert torch.equal(after, logits(lower(copy.deepcopy(model), precision).model, TEXTS[0]))


def test_only_what_is_named_is_quantised(model: Transformer) -> None:
    lowered = lower(model, Precision("some", {"layers.1.down": "w8a8", "head": "int4"}))
    first, second = lowered.model.layers[0], lowered.model.layers[1]
    assert first.down is model.layers[0].down
    assert second.down is lowered.copies[0][0]
    assert lowered.model.head is lowered.copies[1][0]
    assert lowered.model.embedding is model.embedding


def test_a_precision_that_does_not_fit_is_refused(model: Transformer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"layers\.9\.qkv"):
        lower(model, Precision("wrong", {"layers.9.qkv": "w8a8"}))
    wide = load_transformer(tmp_path, torch.float32)
    with pytest.raises(UsageError, match="bfloat16"):
        lower(wide, uniform(wide, "w8a8"))


def test_errors_are_measured_against_the_exact_model(model: Transformer) -> None:
    calibration = Calibration(model, TEXTS)
    assert calibration.measure(EXACT).kl == 0.0
    w8a8 = calibration.measure(uniform(model, "w8a8"))
    int4 = calibration.measure(uniform(model, "int4"))
    assert 0.0 < w8a8.kl < int4.kl
    assert w8a8.share == int4.share == 1.0


def test_a_mix_stays_within_its_budget_and_takes_what_fits(model: Transformer) -> None:
    calibration = Calibration(model, TEXTS)
    everything = calibration.measure(uniform(model, "int4")).kl
    order = calibration.order("int4")
    assert sorted(order) == sorted(matrices(model))
    half = calibration.choose(everything / 2, order=order, kind="int4")
    assert 0.0 < half.kl <= everything / 2
    assert 0.0 < half.share < 1.0
    assert calibration.choose(0.0, order=order, kind="int4").precision.exact
    assert calibration.choose(2 * everything, order=order, kind="int4").share == 1.0
