"""vLLM over HTTP: tokens in and tokens out, and new weights through its own RL endpoints.

The server has to be started for this; `launch_arguments` says how. `VLLM_SERVER_DEV_MODE=1` in its
environment opens the endpoints that change weights, so such a server belongs on a private network.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import UsageError
from practicum.policy.engine.adapters.answers import Answer, Asked, TopLogprobs, completion
from practicum.policy.engine.adapters.connection import Connection, Json
from practicum.policy.engine.adapters.exactness import Scale, measure, why_inexact
from practicum.policy.engine.adapters.folders import has_separate_head, with_separate_head
from practicum.policy.engine.adapters.limits import check_request
from practicum.policy.engine.adapters.models import first_model
from practicum.policy.engine.adapters.openai_probe import only_choice
from practicum.policy.engine.adapters.updates import Weights
from practicum.policy.engine.adapters.vllm_sampling import vllm_sampling
from practicum.policy.model.tokens import Tokens
from practicum.protocols import Completion, Sampling
from practicum.types import Message, WeightVersion

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
class _Controls:
    """Satisfies `updates.Controls`."""

    connection: Connection

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


class VllmServer:
    """A policy that a vLLM server runs. Satisfies `protocols.Policy` and `UpdatablePolicy`.

    Example:
        policy = await VllmServer.connect("http://127.0.0.1:8000", Tokens(folder))
        await policy.update_weights(new_folder, version=1)
    """

    def __init__(
        self, connection: Connection, tokens: Tokens, model: Json, scale: Scale, weights: Weights
    ) -> None:
        """Use `connect`."""
        self.name = str(model["id"])
        self.tokens = tokens
        self.scale = scale
        self._connection = connection
        self._context_length = int(model["max_model_len"])
        self._weights = weights

    @staticmethod
    async def connect(
        url: str, tokens: Tokens, *, version: int = 0, api_key: str | None = None
    ) -> VllmServer:
        """Find out what the server runs and what its log-probs mean.

        Raises UsageError for a server that was not started as `launch_arguments` says.
        """
        connection = Connection(url, api_key=api_key)
        model = await first_model(connection)
        with contextlib.suppress(UsageError):  # its weights cannot be changed: any label will do
            await _Controls(connection).label(version)

        async def ask(temperature: float) -> Mapping[int | str, float]:
            probe = Sampling(max_new_tokens=1, temperature=temperature, top_logprobs=8)
            body: Json = {"token_ids": [0], "sampling_params": vllm_sampling(probe, tokens)}
            choice = only_choice(await connection.post(GENERATE, body))
            likeliest = choice["logprobs"]["content"][0]["top_logprobs"]
            return {entry["token_id"]: entry["logprob"] for entry in likeliest}

        try:
            scale = await measure(ask, engine=url)
        except UsageError as error:
            raise UsageError(f"{error}. Start vLLM with `--enable-scale-out`") from error
        return VllmServer(connection, tokens, model, scale, Weights(str(model["id"]), version))

    @property
    def version(self) -> WeightVersion:
        return self._weights.version

    @property
    def context_length(self) -> int:
        return self._context_length

    def why_not_trainable(self, sampling: Sampling) -> str | None:
        return why_inexact(self.scale, sampling)

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self.tokens.render(messages)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; see `protocols.Policy.generate`."""
        check_request(
            prompt_ids,
            sampling,
            name=self.name,
            context_length=self.context_length,
            largest_id=self.tokens.largest_id,
        )
        version = await self._weights.enter()
        body: Json = {
            "request_id": uuid.uuid4().hex,
            "token_ids": list(prompt_ids),
            "sampling_params": vllm_sampling(sampling, self.tokens),
            "cache_salt": f"version {version}",  # no keys of older weights
        }
        answer = _read(await self._connection.post(GENERATE, body), sampling.top_logprobs)
        fills_context = len(prompt_ids) + sampling.max_new_tokens == self.context_length
        asked = Asked(sampling, version, fills_context)
        return completion(answer, asked, self.tokens, engine=self.name)

    def updating(self, version: int) -> AbstractAsyncContextManager[None]:
        """Around any transport of new weights, such as vLLM's `TrainerWeightTransferEngine`."""
        return self._weights.changing(version, _Controls(self._connection))

    async def update_weights(self, folder: Path, version: int) -> None:
        """Load a folder that the server can read; see `UpdatablePolicy.update_weights`."""
        with contextlib.ExitStack() as stack:
            if await self._keeps_head(folder):
                folder = stack.enter_context(with_separate_head(folder))
            async with self.updating(version):
                await self._connection.post("/collective_rpc", reload_call(folder))

    async def _keeps_head(self, folder: Path) -> bool:
        """Whether the server would miss a new head; see `folders.with_separate_head`."""
        if has_separate_head(folder):
            return False
        info = await self._connection.get("/server_info", {"config_format": "json"})
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

    async def close(self) -> None:
        """Close the connection; the server goes on."""
        await self._connection.close()


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
