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
from practicum.protocols import Completion, Sampling
from practicum.types import Message, StopReason, WeightVersion

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class _Facts:
    """What `connect` found out."""

    model: str
    context_length: int
    extended: bool
    """Whether it takes what OpenAI's own servers do not: top_k and other fields of vLLM."""
    scale: Scale
    why_not_trainable: str | None
    """None if sampled tokens and their log-probs are reported."""


class OpenAiPolicy:
    """A policy behind an OpenAI-compatible server. Satisfies `protocols.Policy`.

    Example:
        policy = await OpenAiPolicy.connect("http://127.0.0.1:8080", context_length=8192)
    """

    def __init__(self, connection: Connection, tokens: Tokens | None, facts: _Facts) -> None:
        """Use `connect`."""
        self.name = facts.model
        self.version = WeightVersion(0)
        self.tokens = tokens
        self._connection = connection
        self._facts = facts

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

        `tokens` must be the tokenizer of the very model that is served. Raises UsageError if the
        context length is neither given nor told by the server.
        """
        connection = Connection(url, api_key=api_key)
        entry = await first_model(connection, model)
        name = str(entry["id"])
        length = context_length or entry.get("max_model_len")
        if not length:
            raise UsageError(f"{url} does not tell the context length of {name}; pass it")
        extended = entry.get("owned_by") in ("vllm", "sglang", "practicum")
        reason: str | None = "it is used without the tokenizer of its model"
        scale = Scale.NONE
        if tokens is not None:
            reason = await why_opaque(connection, name)
            if reason is None:
                scale = await measure(partial(likeliest, connection, name), engine=url)
        facts = _Facts(name, int(length), extended, scale, reason)
        return OpenAiPolicy(connection, tokens, facts)

    @property
    def context_length(self) -> int:
        return self._facts.context_length

    @property
    def trainable(self) -> bool:
        """Whether it reports the sampled tokens and what they were sampled with."""
        return self._facts.why_not_trainable is None

    def why_not_trainable(self, sampling: Sampling) -> str | None:
        """Why completions of this sampling cannot be trained on; None if they can."""
        return self._facts.why_not_trainable or why_inexact(self._facts.scale, sampling)

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
        if not self.trainable:
            answer = await self._connection.post(COMPLETIONS, body)
            choice = only_choice(answer)
            return _told(choice, str(choice["text"]), self.tokens.encode(choice["text"]), sampling)
        body |= {"return_token_ids": True, "logprobs": 0}
        answer = await self._connection.post(COMPLETIONS, body)
        fills_context = len(prompt_ids) + sampling.max_new_tokens == self.context_length
        asked = Asked(sampling, self.version, fills_context)
        return completion(_read(answer), asked, self.tokens, engine=self.name)

    async def close(self) -> None:
        """Close the connection; the server goes on."""
        await self._connection.close()

    async def _generate_text(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        messages = read_messages(prompt_ids)
        body = self._body(sampling, None)
        if messages[0].role == "text":
            body["prompt"] = messages[0].content
            choice = only_choice(await self._connection.post(COMPLETIONS, body))
            text = choice["text"] or ""
        else:
            body["messages"] = [{"role": m.role, "content": m.content} for m in messages]
            choice = only_choice(await self._connection.post(CHAT, body))
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
        if self._facts.extended:
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
