"""What `[engine]` makes of a run: whole runs of the tiny recipe on real engines."""

import asyncio
import json
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from engines_elsewhere import speaking_openai, speaking_vllm
from practicum import stages
from practicum.build import assemble, engine_options
from practicum.config import RunConfig, load_recipe
from practicum.config_engine import EngineConfig, KvConfig
from practicum.environment.evals.run import evaluate
from practicum.errors import UsageError
from practicum.observe.evals import EvalTask
from practicum.observe.runlog import read_events
from practicum.policy.engine import EngineOptions
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.model.hub import find_model
from practicum.policy.model.tiny import tiny_config, write_tiny
from practicum.policy.train.masters import digest

OF_THE_RUN = {"sft": "sft.steps", "model": "model.path", "dtype": "model.dtype",
              "temperature": "rollout.temperature"}  # fmt: skip


def tiny(output: Path, **changes: str) -> RunConfig:
    """Two steps; changes are TOML, of keys of the engine unless `OF_THE_RUN` has them."""
    settings = {
        "output": f'"{output}"',
        "sft.steps": "12",
        "sft.batch_size": "8",
        "train.steps": "2",
        "checkpoint.every": "1",
        "eval.tasks_per_domain": "4",
        "threads": "1",
    }
    for key, value in changes.items():
        settings[OF_THE_RUN.get(key, f"engine.{key.replace('__', '.')}")] = value
    return load_recipe("tiny", settings)


def weights(run: Path) -> str:
    return digest(load_file(run / "ckpt" / "000002" / "weights.safetensors"))


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def caveats(run: Path) -> list[str]:
    return [e["text"] for e in read_events(run / "log.jsonl") if e["event"] == "caveat"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the engine as it is by default."""
    return stages.train(tiny(tmp_path_factory.mktemp("plain")))


def test_an_engine_that_nobody_configured_is_the_default_one():
    assert engine_options(EngineConfig()) == EngineOptions()


def test_every_option_arrives():
    config = EngineConfig(
        precision="w8a8",
        speculate=True,
        rows=300,
        cache_gb=0.5,
        swap_gb=0.25,
        kv=KvConfig(bits=8, recent=128, window=64, sinks=4, layers=(1, 3)),
    )
    assert engine_options(config) == EngineOptions(
        max_batch_rows=300,
        max_step_tokens=600,
        cache_bytes=1 << 29,
        swap_bytes=1 << 28,
        speculate=True,
        precision="w8a8",
        kv=KvPolicy(bits=8, recent=128, window=64, sinks=4, layers=frozenset({1, 3})),
    )


@pytest.mark.slow
def test_a_run_of_the_default_engine_has_no_caveat(plain: Path):
    assert caveats(plain) == []
    for row in metrics(plain):
        assert row["train/updates"] == 1
        assert row["train/logprob_gap"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("engine", [{"speculate": "true"}, {"rows": "5", "cache_gb": "0.01"}])
def test_what_changes_no_token_changes_no_weight(
    plain: Path, tmp_path: Path, engine: dict[str, str]
):
    run = stages.train(tiny(tmp_path, **engine))
    assert caveats(run) == []
    assert weights(run) == weights(plain)


@pytest.mark.slow
def test_a_window_is_sampled_with_and_its_bias_is_said(plain: Path, tmp_path: Path):
    run = stages.train(tiny(tmp_path, kv__window="8", kv__sinks="1"))
    [caveat] = caveats(run)
    assert "a window of 8 tokens" in caveat
    assert "train/logprob_gap" in caveat
    assert metrics(run)[0]["train/logprob_gap"] > 1e-3
    assert weights(run) != weights(plain)


@pytest.mark.slow
def test_products_in_8_bits_are_of_the_weights_as_they_are_now(tmp_path: Path):
    run = stages.train(tiny(tmp_path, precision='"w8a8"', dtype='"bfloat16"'))
    [caveat] = caveats(run)
    assert "8-bit products" in caveat
    for row in metrics(run):  # of the weights before the warm-up or the update it would be above 1
        assert 1e-4 < row["train/logprob_gap"] < 0.2


def test_a_layer_that_the_model_does_not_have_is_refused_with_its_range(tmp_path: Path):
    with pytest.raises(UsageError, match=r"layers names 4, but those of this model are 0 \.\. 3"):
        stages.train(tiny(tmp_path, kv__window="8", kv__layers="[0, 4]"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_server_that_takes_weights_is_trained_bit_for_bit_as_our_engine_is(
    plain: Path, tmp_path: Path
):
    folder, _ = find_model("tiny")
    with speaking_vllm(folder) as server:
        url = f'"{server.url}"'
        run = stages.train(tiny(tmp_path, kind='"vllm-server"', url=url, exchange=f'"{tmp_path}"'))
        assert weights(run) == weights(plain)
        assert "another engine (vllm-server)" in caveats(run)[0]
        final = digest(dict(server.engine.model.named_parameters()))
        assert final == weights(run)
        assert [call["new_version"] for call in server.bodies("/update_weight_version")] == [
            *("0", "0"),  # found, and made equal to the model after its warm-up
            *("1", "2"),
        ]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"], "weights were left"

        with server.engine.lock:  # it was started again, with the weights that it was made from
            for parameter in server.engine.model.parameters():
                parameter.data.mul_(0.5)
        (run / "report.html").unlink()
        stages.resume(run)
        assert digest(dict(server.engine.model.named_parameters())) == final
        assert server.engine.version == 2


def test_a_server_whose_log_probs_mean_something_else_is_refused_before_anything_is_spent(
    tmp_path: Path,
):
    def raw(body: dict[str, Any]) -> dict[str, Any]:
        sampling = {**body["sampling_params"], "temperature": 1.0}
        return drawn({**body, "sampling_params": sampling})

    folder, _ = find_model("tiny")
    with speaking_vllm(folder) as server:
        drawn = server.routes["/inference/v1/generate"]
        server.routes["/inference/v1/generate"] = raw
        url = f'"{server.url}"'
        config = tiny(tmp_path, kind='"vllm-server"', url=url, temperature="0.7")
        with pytest.raises(UsageError, match=r"served cannot be trained.*processed_logprobs"):
            stages.train(config)
        assert "/pause" not in server.paths()
    assert not list(tmp_path.iterdir())


def test_an_openai_server_is_evaluated_and_never_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SERVER_KEY", "a key")
    folder, _ = find_model("tiny")

    def evaluated(config: RunConfig) -> dict[str, EvalTask]:
        run = assemble(config)
        tasks = run.eval_pool.values()
        asked = evaluate(run.policy, tasks, run.domains, run.sandboxes, step=0, seed=0)
        result = asyncio.run(asked)
        run.close()
        return result.tasks

    with speaking_openai(folder, api_key="a key") as url:
        server = {"kind": '"openai-server"', "url": f'"{url}"', "api_key_env": '"SERVER_KEY"'}
        config = tiny(tmp_path, **server, sft="0")
        assert evaluated(config) == evaluated(tiny(tmp_path, sft="0"))
        with pytest.raises(UsageError, match="'openai-server', which takes no new weights"):
            stages.train(config)
    assert not list(tmp_path.iterdir())


def test_a_key_that_is_not_in_the_environment_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("SERVER_KEY", raising=False)
    config = tiny(
        tmp_path, kind='"vllm-server"', url='"http://127.0.0.1:9"', api_key_env='"SERVER_KEY"'
    )
    with pytest.raises(UsageError, match="SERVER_KEY, which is not set"):
        stages.train(config)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_vllm_that_is_not_installed_is_said_with_what_to_install(tmp_path: Path):
    with pytest.raises(UsageError, match=r"install practicum\[vllm\]"):
        assemble(tiny(tmp_path, kind='"vllm"'))


def test_an_exchange_that_is_no_folder_is_refused(tmp_path: Path):
    url = '"http://127.0.0.1:9"'
    with pytest.raises(UsageError, match="exchange '/nowhere' is not a folder"):
        assemble(tiny(tmp_path, kind='"vllm-server"', url=url, exchange='"/nowhere"'))


def test_what_was_opened_is_closed_when_a_later_part_fails(tmp_path: Path):
    write_tiny(tmp_path, config=tiny_config(context_length=16))
    with speaking_vllm(tmp_path) as server:
        given = {"kind": '"vllm-server"', "url": f'"{server.url}"', "model": f'"{tmp_path}"'}
        with pytest.raises(UsageError, match="holds only 16"):
            assemble(tiny(tmp_path, **given))
    assert "engine-home" not in {thread.name for thread in threading.enumerate()}
