"""Our engine behind other engines' doors: a real server for every adapter that takes weights.

`speaking_vllm` answers in vLLM's words and loads the folders that it is given, so that a whole run
can be trained against it; `speaking_openai` is `practicum serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator
from itertools import groupby
from pathlib import Path

import torch

from policy.engine.adapters.fake_server import FakeServer, Json, running
from practicum.endpoint import bind, make_app, serve
from practicum.endpoint.server import address_of
from practicum.policy.engine import Engine
from practicum.policy.engine.adapters.home import Home
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.sampling import Completion, Sampling
from practicum.types import StopReason


def engine_of(folder: Path) -> Engine:
    model = load_transformer(folder, torch.float32)
    return Engine(model, Tokens(folder), name="served")


class SpeaksVllm(FakeServer):
    """What the adapter asks of vLLM 0.32, done by our engine."""

    def __init__(self, engine: Engine, home: Home) -> None:
        super().__init__()
        self.engine, self.home = engine, home
        card = {"id": "served", "owned_by": "vllm", "max_model_len": engine.context_length}
        info = {"device_config": {"device": "cuda"}}
        self.routes |= {
            "/v1/models": lambda _: {"data": [card]},
            "/server_info": lambda _: {"vllm_config": info},
            "/inference/v1/generate": self._generate,
            "/pause": lambda _: {},
            "/collective_rpc": self._reload,
            "/update_weight_version": self._label,
            "/resume": lambda _: {},
        }

    def _generate(self, body: Json) -> Json:
        words = body["sampling_params"]
        sampling = Sampling(
            max_new_tokens=words["max_tokens"],
            temperature=words["temperature"],
            seed=words["seed"],
            stop=tuple(words["stop"]),
            stop_token_ids=tuple(set(words["stop_token_ids"]) - self.engine.tokens.eos_ids),
            top_logprobs=words["logprobs"],
        )
        done = self.home.run(self.engine.generate(body["token_ids"], sampling))
        ended = done.stop_reason in (StopReason.EOS, StopReason.STOP_STRING)
        choice = {
            "finish_reason": "stop" if ended else "length",
            "stop_reason": "\n" if done.stop_reason is StopReason.STOP_STRING else None,
            "token_ids": done.token_ids,
            "weight_versions": _spans(done),
            "logprobs": {"content": _content(done)},
        }
        return {"choices": [choice], "usage": {}}

    def _reload(self, body: Json) -> Json:
        assert body["method"] == "reload_weights"
        new = load_transformer(Path(body["kwargs"]["weights_path"]), torch.float32)
        with self.engine.lock, torch.no_grad():
            for old, value in zip(self.engine.model.parameters(), new.parameters(), strict=True):
                old.copy_(value)
        return {"results": [None]}

    def _label(self, body: Json) -> Json:
        self.engine.publish(int(body["new_version"]))
        return {"success": True}


def _spans(done: Completion) -> list[Json]:
    spans: list[Json] = []
    for version, group in groupby(done.versions):
        start = spans[-1]["end"] if spans else 0
        spans.append({"version": str(version), "start": start, "end": start + len(list(group))})
    return spans


def _content(done: Completion) -> list[Json]:
    rows = done.top_logprobs or ((),) * len(done.token_ids)
    return [
        {
            "token_id": token,
            "logprob": logprob,
            "top_logprobs": [{"token_id": t, "logprob": p} for t, p in row],
        }
        for token, logprob, row in zip(done.token_ids, done.logprobs, rows, strict=True)
    ]


@contextlib.contextmanager
def speaking_vllm(folder: Path) -> Generator[SpeaksVllm]:
    engine, home = engine_of(folder), Home()
    try:
        with running(SpeaksVllm(engine, home)) as server:
            assert isinstance(server, SpeaksVllm)
            yield server
    finally:
        engine.close()
        home.close()


@contextlib.contextmanager
def speaking_openai(folder: Path, *, api_key: str | None = None) -> Generator[str]:
    """The address of our own endpoint, on a thread of its own."""
    engine = engine_of(folder)
    app = make_app(engine, model_id="served", api_key=api_key)
    stop, home = asyncio.Event(), Home()
    with bind("127.0.0.1", 0, has_key=True) as listening:
        serving = threading.Thread(
            target=home.run, args=(serve(app, listening, grace_s=1, stop=stop),)
        )
        serving.start()
        try:
            yield address_of(listening)
        finally:

            async def end() -> None:
                stop.set()

            home.run(end())
            serving.join()
            home.close()
            engine.close()
