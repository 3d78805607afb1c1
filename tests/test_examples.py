"""The examples are run, and the promised loop is held against the real one."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from practicum.config import RunConfig, load_recipe
from practicum.environment.rollout.rollouts import RolloutEngine
from practicum.errors import UsageError
from practicum.stages import train
from practicum.testing import FakePolicy, FakeSandboxPool

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(output: Path) -> RunConfig:
    settings = {"train.steps": "3", "sft.steps": "20", "threads": "1"}
    return load_recipe("tiny", {**settings, "output": f'"{output}"'})


def test_ten_lines_of_public_api_end_with_the_weights_of_the_loop(tmp_path: Path):
    from safetensors.torch import load_file

    from practicum.policy.train.masters import digest

    folder = train(small(tmp_path))
    weights = load_file(folder / "ckpt" / "000003" / "weights.safetensors")
    assert load("loop").train(small(tmp_path)) == digest(weights)


def test_a_tool_that_no_domain_has_is_refused(tmp_path: Path):
    engine = RolloutEngine(
        domains={}, sandboxes=FakeSandboxPool(), group_size=1, temperature=1.0, seed=0
    )
    with pytest.raises(UsageError, match="shell"):
        engine.generate(FakePolicy(lambda prompt, rng: ""), [], tools=["shell"])
