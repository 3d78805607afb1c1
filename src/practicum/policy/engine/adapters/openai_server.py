"""Any OpenAI-compatible server: good for evaluation, and for training where it tells enough.

With a tokenizer, prompts are token ids for `/v1/completions`, and servers that honour
`return_token_ids` (vLLM does) return the sampled tokens with their log-probs. Without one, prompts
are text, chats go to `/v1/chat/completions`, and nothing is known of the tokens: log-probs are NaN.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from practicum.errors import InfraError, UsageError
from practicum.policy.engine.adapters.answers import UNKNOWN, Answer, Asked, completion
from practicum.policy.engine.adapters.connection import Connection, Json
from practicum.policy.engine.adapters.exactness import Scale, measure, why_inexact
from practicum.policy.engine.adapters.limits import check_request, wire_seed
from practicum.policy.engine.adapters.models import first_model
from practicum.policy.engine.adapters.openai_probe import (
    COMPLETIONS,
    likeliest,
    only_choice,
    why_opaque,
)
from practicum.policy.engine.adapters.plain_text import as_ids, read_messages, write_messages
from practicum.policy.engine.adapters.vllm_sampling import structured_outputs
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Completion, Sampling
from practicum.types import Message, StopReason, WeightVersion

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class OpenAiPolicy:
    """A policy behind an OpenAI-compatible server. Satisfies `protocols.Policy`.

    Example:
        policy = await OpenAiPolicy.connect("http://127.0.0.1:8080", context_length=8192)
    """

    name: str
    context_length: int
    tokens: Tokens | None
    connection: Connection
    extended: bool
    """Whether it takes what OpenAI's own servers do not: top_k and other fields of vLLM."""
    scale: Scale
    opaque: str | None
    """Why nothing is known of the sampled tokens; None if they and their log-probs are reported."""

    @staticmethod
    async def connect(
        url: str,
        *,
        model: str | None = None,
        tokens: Tokens | None = None,
        context_length: int | None = None,
        api_key: str | None = None,
    ) -> OpenAiPolicy:
        """Find out what the server offers.

        `tokens` must be the tokenizer of the very model that is served. `context_length` is a
        limit of your own, or stands in for a server that does not tell its limit; UsageError if
        there is neither.
        """
        connection = Connection(url, api_key=api_key)
        entry = await first_model(connection, model)
        name = str(entry["id"])
        lengths = [int(length) for length in (context_length, entry.get("max_model_len")) if length]
        if not lengths:
            raise UsageError(f"{url} does not tell the context length of {name}; pass it")
        opaque: str | None = "it is used without the tokenizer of its model"
        scale = Scale.NONE
        if tokens is not None:
            opaque = await why_opaque(connection, name)
            if opaque is None:
                scale = await measure(partial(likeliest, connection, name), engine=url)
        await connection.close()  # it opens anew on the event loop of whoever asks
        return OpenAiPolicy(
            name=name,
            context_length=min(lengths),
            tokens=tokens,
            connection=connection,
            extended=entry.get("owned_by") in ("vllm", "sglang", "practicum"),
            scale=scale,
            opaque=opaque,
        )

    @property
    def version(self) -> WeightVersion:
        return WeightVersion(0)  # it takes no weights

    def why_not_trainable(self, sampling: Sampling) -> str | None:
        """Why completions of this sampling cannot be trained on; None if they can."""
        return self.opaque or why_inexact(self.scale, sampling)

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids, or the text as code points where there is no tokenizer."""
        return self.tokens.render(messages) if self.tokens else write_messages(messages)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; see `protocols.Policy.generate`."""
        if sampling.top_logprobs:
            raise UsageError("the OpenAI interface names likely tokens by text, not by id")
        if self.tokens is None:
            return await self._generate_text(prompt_ids, sampling)
        check_request(
            prompt_ids,
            sampling,
            name=self.name,
            context_length=self.context_length,
            largest_id=self.tokens.largest_id,
        )
        body: Json = {"prompt": list(prompt_ids), **self._body(sampling, self.tokens)}
        if self.opaque is not None:
            answer = await self.connection.post(COMPLETIONS, body)
            choice = only_choice(answer)
            return _told(choice, str(choice["text"]), self.tokens.encode(choice["text"]), sampling)
        body |= {"return_token_ids": True, "logprobs": 0}
        answer = await self.connection.post(COMPLETIONS, body)
        fills_context = len(prompt_ids) + sampling.max_new_tokens == self.context_length
        asked = Asked(sampling, self.version, fills_context)
        return completion(_read(answer), asked, self.tokens, engine=self.name)

    async def close(self) -> None:
        """Close the connection; the server goes on."""
        await self.connection.close()

    async def _generate_text(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        messages = read_messages(prompt_ids)
        body = self._body(sampling, None)
        if messages[0].role == "text":
            body["prompt"] = messages[0].content
            choice = only_choice(await self.connection.post(COMPLETIONS, body))
            text = choice["text"] or ""
        else:
            body["messages"] = [{"role": m.role, "content": m.content} for m in messages]
            choice = only_choice(await self.connection.post(CHAT, body))
            text = choice["message"]["content"] or ""
        return _told(choice, text, as_ids(text), sampling)

    def _body(self, sampling: Sampling, tokens: Tokens | None) -> Json:
        body: Json = {
            "model": self.name,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": wire_seed(sampling.seed),
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
        if self.extended:
            return body | _extended(sampling, tokens)
        _refuse_unknown(sampling, self.name)
        if sampling.constraint is not None:
            schema = {"name": "answer", "schema": json.loads(sampling.constraint.text)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body


def _extended(sampling: Sampling, tokens: Tokens | None) -> Json:
    """What vLLM takes and would otherwise fill in from the model's own defaults."""
    ends = set(sampling.stop_token_ids)
    if tokens is not None and not sampling.ignore_eos:
        ends |= tokens.eos_ids
    words: Json = {
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": sorted(ends),
        "ignore_eos": sampling.ignore_eos,
    }
    if sampling.constraint is not None:
        words["structured_outputs"] = structured_outputs(sampling.constraint)
    return words


def _refuse_unknown(sampling: Sampling, name: str) -> None:
    """A field that a server ignores is worse than one that it refuses."""
    asked = {
        "top_k": bool(sampling.top_k),
        "min_p": bool(sampling.min_p),
        "repetition_penalty": sampling.repetition_penalty != 1.0,
        "stop_token_ids": bool(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "constraint": sampling.constraint is not None and sampling.constraint.kind != "json_schema",
    }
    if unknown := [field for field, is_asked in asked.items() if is_asked]:
        raise UsageError(
            f"{name} is behind the plain OpenAI interface, which has no {', '.join(unknown)}; "
            "leave them off, or serve the model with vLLM or SGLang"
        )


def _told(choice: Json, text: str, token_ids: Sequence[int], sampling: Sampling) -> Completion:
    """A completion of which the server tells the text alone."""
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length"):
        raise InfraError(f"the server gave a completion up (it says {finish!r})")
    ended = StopReason.STOP_STRING if sampling.stop else StopReason.EOS
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=(UNKNOWN,) * len(token_ids),
        versions=(0,) * len(token_ids),
        text=text,
        stop_reason=ended if finish == "stop" else StopReason.MAX_TOKENS,
    )


def _read(answer: Json) -> Answer:
    choice = only_choice(answer)
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return Answer(
        token_ids=choice["token_ids"],
        logprobs=[float(value) for value in choice["logprobs"]["token_logprobs"]],
        finish=choice.get("finish_reason"),
        matched=choice.get("stop_reason"),
        spans=None,
        reused_tokens=details.get("cached_tokens") or 0,
    )
