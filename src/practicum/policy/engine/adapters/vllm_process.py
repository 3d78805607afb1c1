"""vLLM in this process's charge: `vllm.AsyncLLM`, which keeps its workers in processes of its own.

Needs the extra `vllm`. Weights are updated as `vllm_server` does it, without the HTTP in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import InfraError, PolicyDead, UsageError
from practicum.policy.engine.adapters.answers import Answer, Asked, TopLogprobs, completion
from practicum.policy.engine.adapters.exactness import Scale, why_inexact
from practicum.policy.engine.adapters.folders import with_separate_head
from practicum.policy.engine.adapters.limits import check_request
from practicum.policy.engine.adapters.updates import Weights
from practicum.policy.engine.adapters.vllm_sampling import vllm_sampling
from practicum.policy.engine.adapters.vllm_server import reload_call
from practicum.policy.model.tokens import Tokens
from practicum.protocols import Completion, Sampling
from practicum.types import Message, WeightVersion


@dataclass(frozen=True, slots=True)
class _Controls:
    """Satisfies `updates.Controls`."""

    engine: Any

    async def pause(self) -> None:
        await self.engine.pause_generation(mode="keep")

    async def label(self, version: int) -> None:
        await self.engine.update_weight_version(str(version))

    async def resume(self) -> None:
        await self.engine.resume_generation()

    async def give_up(self) -> None:
        await self.engine.pause_generation(mode="abort")


class VllmPolicy:
    """A policy that vLLM runs for us. Satisfies `protocols.Policy` and `UpdatablePolicy`.

    Example:
        policy = await VllmPolicy.start(folder, options={"max_model_len": 4096})
        await policy.update_weights(new_folder, version=1)
        policy.close()
    """

    def __init__(self, engine: Any, tokens: Tokens, name: str, version: int) -> None:
        """Use `start`."""
        self.name = name
        self.tokens = tokens
        self._engine = engine
        self._context_length = int(engine.model_config.max_model_len)
        self._weights = Weights(name, version)

    @staticmethod
    async def start(
        folder: Path, *, version: int = 0, options: Mapping[str, Any] | None = None
    ) -> VllmPolicy:
        """Load a Hugging Face folder; `options` are those of `vllm.AsyncEngineArgs`.

        The engine belongs to the event loop that runs now. Raises UsageError without vLLM.
        """
        try:
            from vllm import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
            from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UsageError(
                f"vLLM cannot be imported ({error}); install practicum[vllm], or use a server"
            ) from error
        tokens = Tokens(folder)
        with with_separate_head(folder) as loaded:
            arguments = {
                **(options or {}),
                "model": str(loaded),
                "tokenizer": str(folder),
                "logprobs_mode": "processed_logprobs",  # at the temperature of sampling
            }
            engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        await _Controls(engine).label(version)
        return VllmPolicy(engine, tokens, folder.name, version)

    @property
    def version(self) -> WeightVersion:
        return self._weights.version

    @property
    def context_length(self) -> int:
        return self._context_length

    def why_not_trainable(self, sampling: Sampling) -> str | None:
        return why_inexact(Scale.DRAWN, sampling)

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self.tokens.render(messages)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; see `protocols.Policy.generate`. Cancelling it frees its place."""
        check_request(
            prompt_ids,
            sampling,
            name=self.name,
            context_length=self.context_length,
            largest_id=self.tokens.largest_id,
        )
        version = await self._weights.enter()
        prompt = {"prompt_token_ids": list(prompt_ids), "cache_salt": f"version {version}"}
        final = await self._run(prompt, sampling)
        fills_context = len(prompt_ids) + sampling.max_new_tokens == self.context_length
        asked = Asked(sampling, version, fills_context)
        answer = _read(final, sampling.top_logprobs)
        return completion(answer, asked, self.tokens, engine=self.name)

    def updating(self, version: int) -> AbstractAsyncContextManager[None]:
        """Around any transport of new weights, such as vLLM's `TrainerWeightTransferEngine`."""
        return self._weights.changing(version, _Controls(self._engine))

    async def update_weights(self, folder: Path, version: int) -> None:
        """Load a folder; see `UpdatablePolicy.update_weights`."""
        with with_separate_head(folder) as loaded:
            async with self.updating(version):
                await self._engine.collective_rpc(**reload_call(loaded))

    def close(self) -> None:
        """End vLLM's processes. Idempotent."""
        self._engine.shutdown()

    async def _run(self, prompt: Mapping[str, Any], sampling: Sampling) -> Any:
        """The final `RequestOutput`."""
        from vllm.exceptions import VLLMClientError  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.exceptions import (  # pyright: ignore[reportMissingImports]
            EngineDeadError,
            EngineGenerateError,
        )

        final: Any = None
        try:
            outputs = self._engine.generate(
                prompt, _parameters(sampling, self.tokens), uuid.uuid4().hex
            )
            async with contextlib.aclosing(outputs) as stream:
                async for output in stream:
                    final = output
        except EngineDeadError as error:
            raise PolicyDead(f"vLLM has stopped while it ran {self.name} ({error})") from error
        except EngineGenerateError as error:
            raise InfraError(f"vLLM failed at a completion of {self.name} ({error})") from error
        except (VLLMClientError, ValueError) as error:
            raise UsageError(f"vLLM refuses the request to {self.name}: {error}") from error
        assert final is not None, "vLLM ended a request without a word"
        return final


def _parameters(sampling: Sampling, tokens: Tokens) -> Any:
    from vllm.sampling_params import (  # pyright: ignore[reportMissingImports]
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )

    words = vllm_sampling(sampling, tokens)
    if "structured_outputs" in words:
        words["structured_outputs"] = StructuredOutputsParams(**words["structured_outputs"])
    return SamplingParams(**words, output_kind=RequestOutputKind.FINAL_ONLY)


def _read(final: Any, num_top: int) -> Answer:
    output = final.outputs[0]
    token_ids: list[int] = list(output.token_ids)
    rows: list[Mapping[int, Any]] = list(output.logprobs or ())
    spans = output.weight_versions
    return Answer(
        token_ids=token_ids,
        logprobs=[float(row[token].logprob) for row, token in zip(rows, token_ids, strict=True)],
        finish=output.finish_reason,
        matched=output.stop_reason,
        spans=[dataclasses.asdict(span) for span in spans] if spans is not None else None,
        top_logprobs=_likeliest(rows, num_top),
        reused_tokens=final.num_cached_tokens or 0,
    )


def _likeliest(rows: Sequence[Mapping[int, Any]], num_top: int) -> TopLogprobs:
    """vLLM reports the sampled token too, whether or not it is among the likeliest."""
    if not num_top:
        return ()
    pairs = [[(token, float(entry.logprob)) for token, entry in row.items()] for row in rows]
    return tuple(tuple(sorted(row, key=lambda pair: -pair[1])[:num_top]) for row in pairs)
