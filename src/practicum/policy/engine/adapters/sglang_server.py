"""SGLang over HTTP: its native `/generate`, and new weights through its own RL endpoints.

Log-probs are at the temperature before truncation, and a request that truncates asks for the
probability that was kept as well, so both can be trained on. Seeds are honoured by a server that
was started with `--enable-deterministic-inference`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import InfraError, UsageError
from practicum.policy.engine.adapters.answers import Answer
from practicum.policy.engine.adapters.connection import Connection, Json
from practicum.policy.engine.adapters.exactness import Scale, measure, truncates
from practicum.policy.engine.adapters.limits import wire_seed
from practicum.policy.engine.adapters.models import first_model
from practicum.policy.engine.adapters.remote import RemotePolicy
from practicum.policy.engine.adapters.updates import Weights
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Constraint, Sampling


@dataclass(frozen=True, slots=True)
class SglangServer:
    """Satisfies `remote.Wire`.

    Example:
        policy = await SglangServer.connect("http://127.0.0.1:30000", Tokens(folder))
    """

    name: str
    connection: Connection
    tokens: Tokens

    @staticmethod
    async def connect(
        url: str, tokens: Tokens, *, version: int = 0, api_key: str | None = None
    ) -> RemotePolicy:
        """Find out what the server runs and what its log-probs mean."""
        connection = Connection(url, api_key=api_key)
        model = await first_model(connection)
        name = str(model["id"])
        wire = SglangServer(name, connection, tokens)
        await wire.label(version)

        async def likeliest(temperature: float) -> Mapping[int | str, float]:
            probe = Sampling(max_new_tokens=1, temperature=temperature, top_logprobs=8)
            body = _body([0], probe, tokens, uuid.uuid4().hex, "probe")
            rows = (await connection.post("/generate", body))["meta_info"]["output_top_logprobs"]
            return {int(entry[1]): float(entry[0]) for entry in rows[0]}

        follows = await measure(likeliest, engine=url) is Scale.DRAWN
        scale = Scale.TEMPERED if follows else Scale.RAW  # RAW: SGLANG_RETURN_ORIGINAL_LOGPROB
        length = int(model["max_model_len"])
        return RemotePolicy(name, tokens, length, scale, Weights(name, version), wire)

    async def ask(self, prompt_ids: Sequence[int], sampling: Sampling, cache_key: str) -> Answer:
        request_id = uuid.uuid4().hex
        body = _body(prompt_ids, sampling, self.tokens, request_id, cache_key)
        try:
            return _read(await self.connection.post("/generate", body))
        except asyncio.CancelledError:
            with contextlib.suppress(InfraError, UsageError):  # it notices a closed connection late
                await asyncio.shield(self.connection.post("/abort_request", {"rid": request_id}))
            raise

    async def pause(self) -> None:
        await self.connection.post("/pause_generation", {"mode": "in_place"})

    async def label(self, version: int) -> None:
        body: Json = {"new_version": str(version), "abort_all_requests": False}
        await self.connection.post("/update_weight_version", body)

    async def resume(self) -> None:
        await self.connection.post("/continue_generation", {})

    async def give_up(self) -> None:
        await self.connection.post("/abort_request", {"abort_all": True})

    def prepared(self, folder: Path) -> AbstractAsyncContextManager[Path]:
        return nullcontext(folder)

    async def load(self, folder: Path) -> None:
        await self._update("/update_weights_from_disk", {"model_path": str(folder.absolute())})

    async def receive_weights(
        self, shapes: Mapping[str, tuple[int, ...]], dtype: str, group: str
    ) -> None:
        """Take the named tensors, in this order, as rank 0 of a process group broadcasts them.

        To be awaited inside `RemotePolicy.updating`, beside the broadcast. The group is made by
        SGLang's `/init_weights_update_group`.
        """
        body: Json = {
            "names": list(shapes),
            "dtypes": [dtype] * len(shapes),
            "shapes": [list(shape) for shape in shapes.values()],
            "group_name": group,
        }
        await self._update("/update_weights_from_distributed", body)

    async def _update(self, path: str, body: Json) -> None:
        # Requests under way keep their keys, and new ones have a cache key of their own: the cache
        # need not be emptied, which SGLang refuses while requests are paused in place.
        answer = await self.connection.post(path, {**body, "flush_cache": False})
        if not answer.get("success", False):
            raise InfraError(f"{self.name} did not take the weights: {answer.get('message')}")

    async def close(self) -> None:
        """Close the connection; the server goes on."""
        await self.connection.close()


def _body(
    prompt_ids: Sequence[int], sampling: Sampling, tokens: Tokens, request_id: str, cache_key: str
) -> Json:
    return {
        "rid": request_id,
        "input_ids": list(prompt_ids),
        "sampling_params": _sampling(sampling, tokens),
        "return_logprob": True,
        "top_logprobs_num": sampling.top_logprobs,
        "return_sampling_mask": truncates(sampling),
        "extra_key": cache_key,
        "stream": False,
    }


def _sampling(sampling: Sampling, tokens: Tokens) -> Json:
    ends = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ends |= tokens.eos_ids
    words: Json = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "sampling_seed": wire_seed(sampling.seed),
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(ends),
        "ignore_eos": sampling.ignore_eos,
        "top_k": sampling.top_k or -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if sampling.logit_bias:
        words["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return words | _constraint(sampling.constraint)


def _constraint(constraint: Constraint | None) -> Json:
    if constraint is None:
        return {}
    if constraint.kind == "choice":
        choices: list[str] = json.loads(constraint.text)
        return {"regex": "|".join(f"({re.escape(choice)})" for choice in choices)}
    return {constraint.kind: constraint.text}


def _read(answer: Json) -> Answer:
    meta: Json = answer["meta_info"]
    entries: list[tuple[float, int, str | None]] = meta["output_token_logprobs"]
    finish: Json = meta["finish_reason"] or {}
    logprobs = [float(entry[0]) for entry in entries]
    kept: list[float] = meta.get("output_token_sampling_logprobs") or []
    rows: list[list[tuple[float, int, str | None]]] = meta.get("output_top_logprobs") or []
    return Answer(
        token_ids=[int(entry[1]) for entry in entries],
        logprobs=logprobs,
        finish=finish.get("type"),
        matched=finish.get("matched"),
        spans=meta.get("weight_versions"),
        top_logprobs=tuple(tuple((int(e[1]), float(e[0])) for e in row) for row in rows),
        log_kept_mass=[min(0.0, before - after) for before, after in zip(logprobs, kept)],
        reused_tokens=int(meta.get("cached_tokens") or 0),
    )
