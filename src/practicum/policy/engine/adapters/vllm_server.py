"""vLLM over HTTP: tokens in and tokens out, and new weights through its own RL endpoints.

The server has to be started for this; `launch_arguments` says how. `VLLM_SERVER_DEV_MODE=1` in its
environment opens the endpoints that change weights, so such a server belongs on a private network.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import UsageError
from practicum.policy.engine.adapters.answers import Answer, TopLogprobs
from practicum.policy.engine.adapters.connection import Connection, Json
from practicum.policy.engine.adapters.exactness import measure
from practicum.policy.engine.adapters.folders import has_separate_head, with_separate_head
from practicum.policy.engine.adapters.models import first_model
from practicum.policy.engine.adapters.openai_probe import only_choice
from practicum.policy.engine.adapters.remote import RemotePolicy
from practicum.policy.engine.adapters.updates import Weights
from practicum.policy.engine.adapters.vllm_sampling import vllm_sampling
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Sampling

GENERATE = "/inference/v1/generate"


def launch_arguments(model: Path, port: int) -> list[str]:
    """Arguments of `python -m vllm.entrypoints.openai.api_server` that this adapter relies on."""
    return [
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        "--enable-scale-out",  # the endpoint that takes and gives token ids
        *("--logprobs-mode", "processed_logprobs"),  # at the temperature of sampling
        "--enable-prompt-tokens-details",  # how much of a prompt was cached
    ]


@dataclass(frozen=True, slots=True)
class VllmServer:
    """Satisfies `remote.Wire`.

    Example:
        policy = await VllmServer.connect("http://127.0.0.1:8000", Tokens(folder))
        await policy.update_weights(new_folder, version=1)
    """

    name: str
    connection: Connection
    tokens: Tokens

    @staticmethod
    async def connect(
        url: str, tokens: Tokens, *, version: int = 0, api_key: str | None = None
    ) -> RemotePolicy:
        """Find out what the server runs and what its log-probs mean.

        Raises UsageError for a server that was not started as `launch_arguments` says.
        """
        connection = Connection(url, api_key=api_key)
        model = await first_model(connection)
        name = str(model["id"])
        wire = VllmServer(name, connection, tokens)
        with contextlib.suppress(UsageError):  # its weights cannot be changed: any label will do
            await wire.label(version)

        async def likeliest(temperature: float) -> Mapping[int | str, float]:
            probe = Sampling(max_new_tokens=1, temperature=temperature, top_logprobs=8)
            body: Json = {"token_ids": [0], "sampling_params": vllm_sampling(probe, tokens)}
            choice = only_choice(await connection.post(GENERATE, body))
            likeliest = choice["logprobs"]["content"][0]["top_logprobs"]
            return {entry["token_id"]: entry["logprob"] for entry in likeliest}

        try:
            scale = await measure(likeliest, engine=url)
        except UsageError as error:
            raise UsageError(f"{error}. Start vLLM with `--enable-scale-out`") from error
        length = int(model["max_model_len"])
        return RemotePolicy(name, tokens, length, scale, Weights(name, version), wire)

    async def ask(self, prompt_ids: Sequence[int], sampling: Sampling, cache_key: str) -> Answer:
        body: Json = {
            "request_id": uuid.uuid4().hex,
            "token_ids": list(prompt_ids),
            "sampling_params": vllm_sampling(sampling, self.tokens),
            "cache_salt": cache_key,
        }
        return _read(await self.connection.post(GENERATE, body), sampling.top_logprobs)

    async def pause(self) -> None:
        try:
            await self.connection.post("/pause", query={"mode": "keep"})
        except UsageError as error:
            raise UsageError(f"{error}. Start vLLM with VLLM_SERVER_DEV_MODE=1") from error

    async def label(self, version: int) -> None:
        await self.connection.post("/update_weight_version", {"new_version": str(version)})

    async def resume(self) -> None:
        await self.connection.post("/resume")

    async def give_up(self) -> None:
        await self.connection.post("/abort_requests", {})

    @contextlib.asynccontextmanager
    async def prepared(self, folder: Path) -> AsyncGenerator[Path]:
        with contextlib.ExitStack() as stack:
            if await self._keeps_head(folder):
                folder = stack.enter_context(with_separate_head(folder))
            yield folder

    async def load(self, folder: Path) -> None:
        await self.connection.post("/collective_rpc", reload_call(folder))

    async def close(self) -> None:
        """Close the connection; the server goes on."""
        await self.connection.close()

    async def _keeps_head(self, folder: Path) -> bool:
        """Whether the server would miss a new head; see `folders.with_separate_head`."""
        if has_separate_head(folder):
            return False
        info = await self.connection.get("/server_info", {"config_format": "json"})
        config = info["vllm_config"]
        if config["device_config"].get("device") != "cpu":
            return False
        if not config["model_config"].get("word_embeddings_untied_by_checkpoint"):
            raise UsageError(
                f"{self.name} runs on the CPU and was loaded from a folder whose head is tied to "
                "its embedding; vLLM would go on with the old head after an update. Start it from "
                "the folder that `with_separate_head` makes"
            )
        return True


def reload_call(folder: Path) -> Json:
    """vLLM's own reload of all workers from a folder that they can read."""
    return {"method": "reload_weights", "kwargs": {"weights_path": str(folder.absolute())}}


def _read(answer: Json, num_top: int) -> Answer:
    choice = only_choice(answer)
    content: list[Json] = choice["logprobs"]["content"]
    token_ids: list[int] = choice["token_ids"]
    assert [entry["token_id"] for entry in content] == token_ids, "log-probs of other tokens"
    details = answer["usage"].get("prompt_tokens_details") or {}
    return Answer(
        token_ids=token_ids,
        logprobs=[float(entry["logprob"]) for entry in content],
        finish=choice["finish_reason"],
        matched=choice.get("stop_reason"),
        spans=choice.get("weight_versions"),
        top_logprobs=_likeliest(content, num_top),
        reused_tokens=details.get("cached_tokens") or 0,
    )


def _likeliest(content: Sequence[Mapping[str, Any]], num_top: int) -> TopLogprobs:
    """vLLM puts the sampled token first, whether or not it is among the likeliest."""
    if not num_top:
        return ()
    rows = [[(e["token_id"], float(e["logprob"])) for e in row["top_logprobs"]] for row in content]
    return tuple(tuple(sorted(set(row), key=lambda pair: -pair[1])[:num_top]) for row in rows)
