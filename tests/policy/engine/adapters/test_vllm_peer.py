"""The vLLM adapters against vLLM itself, in the peers' environment, with SmolLM2-135M-Instruct."""

import asyncio
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from policy.engine.adapters import vllm_exercise
from policy.engine.adapters.vllm_exercise import COOL, LONG, PROMPTS, exercise, plain
from practicum import stages
from practicum.config import load_recipe
from practicum.errors import PracticumError
from practicum.policy.engine import Engine
from practicum.policy.engine.adapters.exactness import Scale
from practicum.policy.engine.adapters.folders import with_separate_head
from practicum.policy.engine.adapters.vllm_server import VllmServer, launch_arguments
from practicum.policy.model.hub import fetch_model
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.sampling import Sampling

PYTHON = Path(__file__).parents[4] / ".peers" / "vllm" / "bin" / "python"
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_SERVER_DEV_MODE": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(Path(__file__).parents[4] / "src"),
}
Done = dict[str, Any]

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM in .peers/vllm"),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return fetch_model("smollm2-135m")
    except PracticumError as error:
        pytest.skip(f"SmolLM2 cannot be fetched here: {error}")


@pytest.fixture(scope="module")
def new_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, every matrix moved by a tenth of its spread."""
    made = tmp_path_factory.mktemp("vllm") / "new"
    made.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (made / path.name).write_bytes(path.read_bytes())
    noise = torch.Generator().manual_seed(0)
    moved: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        spread = 0.1 * tensor.float().std() if tensor.dim() == 2 else 0.0
        step = torch.randn(tensor.shape, generator=noise) * spread
        moved[name] = (tensor.float() + step).bfloat16()
    save_file(moved, made / "model.safetensors", metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with socket.socket() as free, ExitStack() as stack:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        loaded = stack.enter_context(with_separate_head(folder))
        command = [
            *(str(PYTHON), "-m", "vllm.entrypoints.openai.api_server"),
            *launch_arguments(loaded, port),
            *("--max-model-len", "512", "--max-num-seqs", "8", "--dtype", "bfloat16"),
            "--enforce-eager",
        ]
        process = subprocess.Popen(
            command,
            env=os.environ | SETTINGS,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        ready, said = threading.Event(), list[str]()

        def listen() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                if "Application startup complete" in line:
                    ready.set()
            ready.set()  # it ended

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            assert ready.wait(300), "the server did not start"
            assert process.poll() is None, "".join(said[-30:])
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)
            listener.join()


@pytest.fixture(scope="module", params=["server", "process"])
def seen(request: pytest.FixtureRequest, folder: Path, new_folder: Path) -> Done:
    if request.param == "server":
        url: str = request.getfixturevalue("url")

        async def by_http() -> Done:
            policy = await VllmServer.connect(url, Tokens(folder))
            assert policy.scale is Scale.DRAWN
            return await exercise(policy, new_folder)

        return asyncio.run(by_http())
    command = [str(PYTHON), str(vllm_exercise.__file__), str(folder), str(new_folder)]
    process = subprocess.run(
        command, env=os.environ | SETTINGS, capture_output=True, text=True, timeout=400
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


def mean_gap(folder: Path, prompt: str, done: Done, temperature: float) -> float:
    """Mean distance of the reported log-probs to transformers' in float32."""
    prompt_ids = Tokens(folder).encode(prompt)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt_ids + done["token_ids"]])).logits[0].double()
    values_TV = (logits_TV / temperature).log_softmax(-1)[len(prompt_ids) - 1 : -1]
    exact = values_TV[torch.arange(len(done["token_ids"])), torch.tensor(done["token_ids"])]
    return (exact - torch.tensor(done["logprobs"], dtype=torch.float64)).abs().mean().item()


async def test_greedy_tokens_and_log_probs_are_those_of_our_engine(seen: Done, folder: Path):
    model, tokens = load_transformer(folder, torch.bfloat16), Tokens(folder)
    engine = Engine(model, tokens, name="ours")
    for prompt, done in zip(PROMPTS, seen["greedy"], strict=True):
        ours = await engine.generate(tokens.encode(prompt), vllm_exercise.GREEDY)
        pairs = list(zip(ours.token_ids, done["token_ids"], strict=False))
        agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        assert agreed >= 6  # two bf16 roundings may part where two tokens are nearly as likely
        gaps = [abs(a - b) for a, b in zip(ours.logprobs[:agreed], done["logprobs"][:agreed])]
        assert max(gaps) < 0.15
    engine.close()


def test_log_probs_are_at_the_temperature_of_sampling(seen: Done, folder: Path):
    for prompt, done in zip(PROMPTS, seen["cool"], strict=True):
        assert mean_gap(folder, prompt, done, COOL.temperature) < 0.06
        assert mean_gap(folder, prompt, done, 1.0) > 0.06


def test_a_seed_gives_the_same_tokens_alone_and_in_company(seen: Done):
    assert seen["cool alone"]["token_ids"][:4] == seen["cool"][0]["token_ids"][:4]


def test_stop_strings_constraints_and_likely_tokens_work(seen: Done):
    assert seen["stop"]["stop_reason"] == "stop_string"
    assert "answer" not in seen["stop"]["text"]
    assert (seen["choice"]["text"], seen["choice"]["stop_reason"]) == ("Lyon", "eos")
    for row in seen["top"]["top_logprobs"]:
        assert len(row) == 4
        assert row == sorted(row, key=lambda pair: -pair[1])
    assert "presence_penalty" in seen["refusal"]


def test_requests_under_way_go_on_with_the_new_weights(seen: Done):
    for done in seen["under way"]:
        versions = done["versions"]
        assert len(versions) == len(done["token_ids"]) == LONG.max_new_tokens
        assert versions == sorted(versions)
        assert set(versions) == {0, 1}


def test_after_an_update_every_weight_is_the_new_one(seen: Done, folder: Path, new_folder: Path):
    for prompt, old, new in zip(PROMPTS, seen["cool"], seen["new cool"], strict=True):
        assert set(old["versions"]) == {0}
        assert set(new["versions"]) == {1}
        assert old["token_ids"] != new["token_ids"]
        assert mean_gap(new_folder, prompt, new, COOL.temperature) < 0.1
        assert mean_gap(folder, prompt, new, COOL.temperature) > 0.2


async def test_a_cancelled_call_leaves_the_server_idle(url: str, folder: Path):
    policy = await VllmServer.connect(url, Tokens(folder))
    prompt = policy.tokens.encode(PROMPTS[0])
    call = asyncio.create_task(policy.generate(prompt, Sampling(490, ignore_eos=True)))
    await policy.generate(prompt, Sampling(4, ignore_eos=True))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await policy.generate(prompt, Sampling(4, ignore_eos=True))
    async with httpx.AsyncClient() as client:
        metrics = (await client.get(f"{url}/metrics")).text
    running = [line for line in metrics.splitlines() if "num_requests_running{" in line]
    assert [line.split()[-1] for line in running] == ["0.0"]
    await policy.close()


def test_a_recipe_trains_with_its_rollouts_on_the_server(
    url: str, folder: Path, new_folder: Path, tmp_path: Path
):
    async def served(then: Path | None) -> Done:
        policy = await VllmServer.connect(url, Tokens(folder))
        done = plain(await policy.generate(policy.tokens.encode(PROMPTS[0]), COOL))
        if then is not None:
            await policy.update_weights(then, 1)
        await policy.close()
        return done

    asyncio.run(served(then=new_folder))  # the run must not begin with whatever is there
    settings = {
        **{"name": '"peer"', "output": f'"{tmp_path}"', "model.path": f'"{folder}"'},
        **{"engine.kind": '"vllm-server"', "engine.url": f'"{url}"'},
        **{"rollout.groups_per_step": "2", "rollout.group_size": "4", "train.steps": "2"},
        **{"train.learning_rate": "5e-4", "train.warmup_steps": "0", "eval.tasks_per_domain": "0"},
    }
    run = stages.train(load_recipe("demo", settings))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["train/updates"] for row in rows) > 0, "nothing was learned"
    assert max(row["train/logprob_gap"] for row in rows) < 0.15
    done = asyncio.run(served(then=None))
    gaps = [mean_gap(f, PROMPTS[0], done, COOL.temperature) for f in (run / "model", folder)]
    assert gaps[0] < 0.1 < gaps[1]
