"""`POST /v1/completions`: text or token ids in, their continuation out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from practicum.endpoint.logprobs import CompletionLogprobs, TokenNames
from practicum.endpoint.refusals import Refusal
from practicum.endpoint.replies import Ask, Head, Job, finish_reason
from practicum.endpoint.requests import CompletionBody
from practicum.endpoint.rooms import room
from practicum.endpoint.sampling import constraint_of, sampling_of, seeded
from practicum.endpoint.streaming import Delta, Json, NamesTokens
from practicum.protocols import Policy
from practicum.types import Message

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""
MAX_PROMPTS = 256


def plan_completion(policy: Policy, request: CompletionBody) -> Job:
    """What a request asks for. Raises Refusal or UsageError."""
    if request.echo and request.logprobs is not None:
        raise Refusal(
            "`echo` with `logprobs` is not supported: prompts are not scored", param="echo"
        )
    prompts = read_prompts(policy, request.prompt)
    constraint = constraint_of(request, ())
    asks: list[Ask] = []
    for ids in prompts:
        max_new = room(
            policy, len(ids), request.max_tokens, default=DEFAULT_MAX_TOKENS, param="prompt"
        )
        sampling = sampling_of(
            request,
            max_new_tokens=max_new,
            top_logprobs=request.logprobs or 0,
            constraint=constraint,
        )
        asks += [Ask(ids, one) for one in seeded(sampling, request.n)]
    wire = CompletionWire(
        head=Head.of(policy, request.model, "cmpl"),
        prompts=prompts if request.return_token_ids else (),
        n=request.n,
        echoes=_echoes(policy, request.prompt, prompts) if request.echo else (),
        logprobs=None
        if request.logprobs is None
        else [CompletionLogprobs(TokenNames(policy), request.logprobs) for _ in asks],
    )
    options = request.stream_options
    return Job(asks, request.n, wire, request.stream, options is not None and options.include_usage)


def read_prompts(policy: Policy, prompt: str | list[Any]) -> list[list[int]]:
    """Token ids of every prompt."""
    given = [prompt] if isinstance(prompt, str) or _are_ids(prompt) else prompt
    if len(given) > MAX_PROMPTS:
        raise Refusal(f"at most {MAX_PROMPTS} prompts, not {len(given)}", param="prompt")
    prompts: list[list[int]] = []
    for one in cast(list[object], given):
        if isinstance(one, str):
            prompts.append(policy.render([Message("text", one)]))
        elif isinstance(one, list) and _are_ids(cast(list[object], one)):
            prompts.append(cast(list[int], one))
        else:
            raise Refusal(
                "`prompt` must be a string, a list of token ids, or a list of either",
                param="prompt",
            )
    if not prompts:
        raise Refusal("`prompt` is an empty list", param="prompt")
    return prompts


def _are_ids(values: Sequence[object]) -> bool:
    return bool(values) and all(type(value) is int for value in values)


def _echoes(policy: Policy, given: str | list[Any], prompts: Sequence[Sequence[int]]) -> list[str]:
    """Every prompt as text."""
    nested = isinstance(given, list) and not _are_ids(given)
    texts: list[str] = []
    for source, ids in zip(cast(list[object], given if nested else [given]), prompts, strict=True):
        if isinstance(source, str):
            texts.append(source)
        elif isinstance(policy, NamesTokens):
            texts.append(b"".join(map(policy.token_bytes, ids)).decode(errors="replace"))
        else:
            raise Refusal("`echo` of token ids is not supported by this model", param="echo")
    return texts


@dataclass(frozen=True, slots=True)
class CompletionWire:
    """One reply of this format. Satisfies `replies.Wire`."""

    head: Head
    prompts: Sequence[Sequence[int]]
    """Token ids to report; empty if that was not asked for."""
    n: int
    echoes: Sequence[str]
    """Prompts to repeat as text; empty if that was not asked for."""
    logprobs: Sequence[CompletionLogprobs] | None
    """One for each choice."""

    def whole(self, choices: Sequence[Delta], usage: Json) -> Json:
        told = [self._choice(i, d, self._echo(i) + d.text) for i, d in enumerate(choices)]
        for index, choice in enumerate(told):
            self._add_prompt(index, choice)
        return self.head("text_completion", told, usage=usage)

    def opening(self) -> list[Json]:
        chunks: list[Json] = []
        for index in range(self.n * max(len(self.echoes), len(self.prompts))):
            choice: dict[str, Any] = {"index": index, "text": self._echo(index)}
            choice |= {"logprobs": None, "finish_reason": None}
            self._add_prompt(index, choice)
            chunks.append(self.head("text_completion", [choice]))
        return chunks

    def chunks(self, index: int, delta: Delta) -> list[Json]:
        tells_tokens = self.logprobs is not None or bool(self.prompts)
        if not (delta.text or delta.stop_reason or (delta.token_ids and tells_tokens)):
            return []
        return [self.head("text_completion", [self._choice(index, delta, delta.text)])]

    def closing(self, usage: Json) -> Json:
        return self.head("text_completion", [], usage=usage)

    def _choice(self, index: int, delta: Delta, text: str) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None if self.logprobs is None else self.logprobs[index].take(delta),
            "finish_reason": finish_reason(delta.stop_reason),
        }
        if self.prompts:
            choice["token_ids"] = list(delta.token_ids)
        return choice

    def _echo(self, index: int) -> str:
        return self.echoes[index // self.n] if self.echoes else ""

    def _add_prompt(self, index: int, choice: dict[str, Any]) -> None:
        if self.prompts:
            choice["prompt_token_ids"] = list(self.prompts[index // self.n])
