"""vLLM in this process's charge: `vllm.AsyncLLM`, which keeps its workers in processes of its own.

Needs the extra `vllm`. Weights are updated as `vllm_server` does it, without the HTTP in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import InfraError, PolicyDead, UsageError, did_you_mean
from practicum.policy.engine.adapters.answers import Answer, TopLogprobs
from practicum.policy.engine.adapters.exactness import Scale
from practicum.policy.engine.adapters.folders import with_separate_head
from practicum.policy.engine.adapters.remote import RemotePolicy
from practicum.policy.engine.adapters.updates import Weights
from practicum.policy.engine.adapters.vllm_sampling import vllm_sampling
from practicum.policy.engine.adapters.vllm_server import reload_call
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Sampling

OURS = frozenset({"model", "tokenizer", "logprobs_mode"})
"""Arguments of vLLM that are not for the caller to choose."""


@dataclass(frozen=True, slots=True)
class VllmPolicy:
    """Satisfies `remote.Wire`.

    Example:
        policy = await VllmPolicy.start(folder, options={"max_model_len": 4096})
        await policy.update_weights(new_folder, version=1)
        await policy.close()
    """

    name: str
    engine: Any
    tokens: Tokens

    @staticmethod
    async def start(
        folder: Path, *, version: int = 0, options: Mapping[str, Any] | None = None
    ) -> RemotePolicy:
        """Load a Hugging Face folder; `options` are those of `vllm.AsyncEngineArgs`.

        The engine belongs to the event loop that runs now. Raises UsageError without vLLM, and for
        an option that it does not have.
        """
        try:
            from vllm import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
            from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UsageError(
                f"vLLM cannot be imported ({error}); install practicum[vllm], or use a server"
            ) from error
        options = options or {}
        check_options(options, {field.name for field in dataclasses.fields(AsyncEngineArgs)})
        tokens = Tokens(folder)
        with with_separate_head(folder) as loaded:
            arguments = {
                **options,
                "model": str(loaded),
                "tokenizer": str(folder),
                "logprobs_mode": "processed_logprobs",  # at the temperature of sampling
            }
            try:
                engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
            except ValueError as error:
                given = dict(options) or "its default options"
                raise UsageError(f"vLLM refuses {folder} with {given}: {error}") from error
        wire, length = VllmPolicy(folder.name, engine, tokens), engine.model_config.max_model_len
        await wire.label(version)
        weights = Weights(folder.name, version)
        return RemotePolicy(folder.name, tokens, int(length), Scale.DRAWN, weights, wire)

    async def ask(self, prompt_ids: Sequence[int], sampling: Sampling, cache_key: str) -> Answer:
        prompt = {"prompt_token_ids": list(prompt_ids), "cache_salt": cache_key}
        return _read(await self._run(prompt, sampling), sampling.top_logprobs)

    async def pause(self) -> None:
        await self.engine.pause_generation(mode="keep")

    async def label(self, version: int) -> None:
        await self.engine.update_weight_version(str(version))

    async def resume(self) -> None:
        await self.engine.resume_generation()

    async def give_up(self) -> None:
        await self.engine.pause_generation(mode="abort")

    @contextlib.asynccontextmanager
    async def prepared(self, folder: Path) -> AsyncGenerator[Path]:
        with with_separate_head(folder) as loaded:
            yield loaded

    async def load(self, folder: Path) -> None:
        await self.engine.collective_rpc(**reload_call(folder))

    async def close(self) -> None:
        """End vLLM's processes. Idempotent."""
        self.engine.shutdown()

    async def _run(self, prompt: Mapping[str, Any], sampling: Sampling) -> Any:
        """The final `RequestOutput`."""
        from vllm.exceptions import VLLMClientError  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.exceptions import (  # pyright: ignore[reportMissingImports]
            EngineDeadError,
            EngineGenerateError,
        )

        final: Any = None
        try:
            outputs = self.engine.generate(
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


def check_options(options: Mapping[str, Any], known: set[str]) -> None:
    """Raises UsageError for an option that vLLM does not have, or that is not the caller's."""
    for name in options:
        if name in OURS:
            raise UsageError(f"{name} of vLLM is set for you; leave it out of its options")
        if name not in known:
            hint = did_you_mean(name, known)
            hint = hint if hint.startswith(" Did") else " `vllm.AsyncEngineArgs` has the list."
            raise UsageError(f"vLLM has no option {name!r}.{hint}")


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
