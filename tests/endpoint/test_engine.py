"""From the command to tokens: a real model, a real engine, OpenAI's own client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from endpoint.served import Served, serving
from practicum.cli import main
from practicum.policy.engine.engine import Engine
from practicum.policy.model.tiny import write_tiny
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.sampling import Sampling
from practicum.types import Message

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return folder


@pytest.fixture
def engine(folder: Path) -> Generator[Engine]:
    engine = Engine(load_transformer(folder, torch.float32), Tokens(folder), name="tiny")
    yield engine
    engine.close()


@pytest.fixture
async def served(engine: Engine) -> AsyncGenerator[Served]:
    async with serving(engine) as served:
        yield served


async def test_a_reply_is_what_the_engine_samples(engine: Engine, served: Served):
    prompt = engine.render([Message("user", "hello")])
    expected = await engine.generate(prompt, Sampling(max_new_tokens=24, seed=5))
    reply = await served.openai.chat.completions.create(
        model="fake",
        messages=HELLO,
        max_tokens=24,
        seed=5,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    (choice,) = reply.choices
    assert tuple(choice.token_ids) == expected.token_ids
    assert [e.logprob for e in choice.logprobs.content] == pytest.approx(expected.logprobs)
    assert choice.message.content == expected.text
    assert reply.prompt_token_ids == prompt
    assert reply.usage.prompt_tokens == len(prompt)


async def test_a_stream_put_together_is_the_whole_reply(served: Served):
    asked: dict[str, Any] = {"model": "fake", "prompt": "abc", "max_tokens": 40, "seed": 3, "n": 2}
    whole = await served.openai.completions.create(**asked)
    stream = await served.openai.completions.create(stream=True, **asked)
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


async def test_concurrent_requests_share_the_engines_steps(engine: Engine, served: Served):
    """Twenty times as many tokens do not take twenty times as many steps."""
    num_tokens = 16
    before = engine.stats
    replies = await asyncio.gather(
        *(
            served.openai.completions.create(
                model="fake",
                prompt=f"question {number}",
                max_tokens=num_tokens,
                extra_body={"ignore_eos": True},
            )
            for number in range(20)
        )
    )
    done = engine.stats - before
    assert len(replies) == 20
    assert done.sampled_tokens >= 20
    assert done.decode_rows >= 2 * done.decode_steps


async def test_what_the_engine_refuses_is_a_bad_request_and_nothing_more(served: Served):
    with pytest.raises(openai.BadRequestError, match="token id 5000 is outside the vocabulary"):
        await served.openai.completions.create(model="fake", prompt=[5000])
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await served.openai.completions.create(model="fake", prompt="x" * 600)
    assert (await served.http.get("/health")).status_code == 200


async def test_a_dead_engine_is_unavailable(engine: Engine, served: Served):
    engine.close()
    with pytest.raises(openai.InternalServerError) as refused:
        await served.openai.completions.create(model="fake", prompt="x")
    assert (refused.value.status_code, refused.value.code) == (503, "engine_dead")
    assert (await served.http.get("/health")).status_code == 503


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "PRACTICUM_API_KEY"),
        (["--api-key", ""], "the API key is empty"),
        (["--port", "70000"], "Must be <= 65535"),
        (["--port", "0", "--dtype", "int3"], "int3"),
        (["--port", "0", "--host", "no.such.host.invalid"], "cannot bind"),
    ],
)
def test_the_command_says_what_is_wrong_before_it_loads_anything(
    options: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("PRACTICUM_API_KEY", raising=False)
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "no-such-model", *options])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_serves_a_model_until_it_is_asked_to_stop(folder: Path):
    command = [sys.executable, "-u", "-m", "practicum", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "PRACTICUM_API_KEY": "secret", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        line = next(line for line in lines if line.startswith("serving"))
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
            (model,) = client.models.list()
            assert model.id == folder.name
            reply = client.chat.completions.create(model=model.id, messages=HELLO, max_tokens=5)
            assert reply.usage is not None
            assert 1 <= reply.usage.completion_tokens <= 5
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
        assert [line.strip() for line in lines] == ["stopped"]
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_a_template_that_never_ends_does_not_keep_the_command_from_stopping(tmp_path: Path):
    write_tiny(tmp_path)
    loop = "{% for i in range(99999) %}"
    (tmp_path / "chat_template.jinja").write_text(loop * 3 + "{% endfor %}" * 3)
    command = [sys.executable, "-u", "-m", "practicum", "serve", str(tmp_path), "--port", "0"]
    environment = {**os.environ, "PRACTICUM_API_KEY": "secret", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [*command, "--grace-s", "1"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        line = next(line for line in lines if line.startswith("serving"))
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        with (
            openai.OpenAI(base_url=url, api_key="secret", max_retries=0, timeout=2) as client,
            pytest.raises(openai.APITimeoutError),
        ):
            client.chat.completions.create(model=tmp_path.name, messages=HELLO)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=15) == 0
        assert [line.strip() for line in lines] == ["stopped"]
    finally:
        server.kill()
        server.wait()
