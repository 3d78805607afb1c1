"""`practicum doctor --parity`: what it measures, what it concludes, and how it exits."""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from practicum import parity
from practicum.cli import main
from practicum.parity import Comparison, judge
from practicum.policy.model.native import kernels

FINE = Comparison("bfloat16", "trainer", True, 10, 10, 0.0, 0.0, 0.0, 0.0)
FLOAT32 = replace(FINE, dtype="float32", compiled=False, mean_difference=3e-6, limit=1e-5)


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "NEW_TOKENS", 8)


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", *words])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@pytest.mark.slow
def test_the_tiny_model_holds_also_beside_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--parity", "tiny", "--against", "transformers", "--json")
    assert code == 0, out
    said = json.loads(out)
    assert said["holds"]
    found = {(row["dtype"], row["other"]): row for row in said["comparisons"]}
    assert len(found) == 4
    assert {row["num_tokens"] for row in found.values()} == {8 * 12}
    if kernels.serves(torch.bfloat16):
        assert found["bfloat16", "trainer"]["num_equal"] == 8 * 12
    assert found["float32", "trainer"]["max_difference"] < 1e-5
    assert found["float32", "transformers"]["max_difference"] < 1e-5
    assert 0 < found["bfloat16", "transformers"]["mean_difference"] < 0.01


def test_a_trainer_that_differs_is_found_and_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = parity.trainer_logprobs

    def wrong(*arguments: object) -> Tensor:
        logprobs = right(*arguments)  # pyright: ignore[reportArgumentType]
        logprobs[-1] += 0.01
        return logprobs

    monkeypatch.setattr(parity, "trainer_logprobs", wrong)
    code, out, _ = call(capsys, "--parity", "tiny")
    assert code == 3
    assert "disagree" in out


def test_what_is_wrong_in_the_call_is_said_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (("--parity", "smollm2-135n"), "Did you mean 'smollm2-135m'"),
        (("--against", "transformers"), "--parity"),
        (("--parity", "tiny", "--against", "vllm"), "transformers"),
    ):
        code, _, err = call(capsys, *words)
        assert code == 2, err
        assert message in " ".join(err.split())


def test_the_verdict_names_what_to_do() -> None:
    assert "bit for bit" in judge([FINE, FLOAT32])
    plain = replace(FINE, compiled=False, num_equal=0, mean_difference=0.03, limit=0.1)
    assert "rounding only" in judge([plain, FLOAT32])
    broken = replace(FINE, num_equal=9, mean_difference=1e-6)
    assert not broken.holds, "one bit in one token is too much where bits are promised"
    assert "model.dtype = 'float32'" in judge([broken, FLOAT32])
    off = replace(FLOAT32, mean_difference=1e-3)
    assert "model.dtype = 'bfloat16'" in judge([FINE, off])
    assert "do not train" in judge([broken, off])
    strange = replace(FLOAT32, other="transformers", mean_difference=0.5)
    assert "config.json" in judge([FINE, FLOAT32, strange])
    assert replace(strange, dtype="bfloat16", limit=None).holds, "nothing is promised there"
    nan = replace(FINE, mean_difference=float("nan"))
    assert not nan.holds
