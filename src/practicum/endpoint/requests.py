"""The bodies of requests: every field is known or refused, with a hint for a typo.

A field that is null counts as left out. Fields that cannot change the answer are accepted and
ignored; fields that ask for something that is not done here are refused, never silently dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from practicum.endpoint.refusals import Refusal
from practicum.errors import did_you_mean

IGNORED = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""They are about accounts and billing."""

NOT_HERE: Mapping[str, str] = {
    "audio": "the model reads and writes text",
    "best_of": "ask for `n` and choose",
    "function_call": "use `tool_choice`",
    "functions": "use `tools`",
    "modalities": "the model reads and writes text",
    "prediction": "speculation is the engine's own business",
    "reasoning_effort": "the model has no such setting",
    "suffix": "the model continues text, it does not fill gaps",
    "verbosity": "the model has no such setting",
    "web_search_options": "this server reaches no network",
}
"""Fields of OpenAI's own service, and what to do instead."""


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted, and nothing to do: it pads events against observers of the network."""


class StructuredOutputs(Body):
    """The language of the completion, by exactly one of these."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1)


class Wanted(Body):
    """What both kinds of request have. Beyond OpenAI's fields: those of `Sampling`."""

    model: str
    n: int = Field(default=1, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    logit_bias: dict[str, float] = Field(default_factory=dict[str, float])
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    stop: str | list[str] = Field(default_factory=list[str])
    stop_token_ids: list[int] = Field(default_factory=list[int])
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool = False


class CompletionBody(Wanted):
    """`POST /v1/completions`."""

    prompt: str | list[Any]
    """Text, token ids, or a list of either."""
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=20)


class ChatBody(Wanted):
    """`POST /v1/chat/completions`."""

    messages: list[Any] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[Any] = Field(default_factory=list[Any])
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None


AnyBody = TypeVar("AnyBody", CompletionBody, ChatBody)


def read(body: bytes, kind: type[AnyBody]) -> AnyBody:
    """A request from its JSON. Raises Refusal, naming the field."""
    try:
        fields: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refusal("the body must be a JSON object")
    given = {
        name: value
        for name, value in cast(dict[str, Any], fields).items()
        if value is not None and name not in IGNORED
    }
    if given.get("modalities") == ["text"]:
        del given["modalities"]
    for name, reason in NOT_HERE.items():
        if name in given:
            raise Refusal(f"`{name}` is not supported here: {reason}", param=name)
    try:
        request = kind.model_validate(given)
    except ValidationError as error:
        raise _explained(error, kind) from None
    if request.stream_options is not None and not request.stream:
        raise Refusal("`stream_options` needs `stream: true`", param="stream_options")
    return request


def _explained(error: ValidationError, kind: type[BaseModel]) -> Refusal:
    """The first thing that is wrong, in one sentence."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in first["loc"]]
    # Of a union, pydantic names the branch that it tried; nobody asked for `stop.list[str].0`.
    nested = {"stream_options": StreamOptions, "structured_outputs": StructuredOutputs}
    param = ".".join(path[: 2 if path[0] in nested else 1])
    if first["type"] == "extra_forbidden":
        model = nested.get(path[0], kind)
        known = [field.alias or name for name, field in model.model_fields.items()]
        hint = did_you_mean(path[-1], known)
        return Refusal(f"unknown field `{param}`.{hint}", param=param, code="unknown_parameter")
    if first["type"] == "missing":
        return Refusal(f"the field `{param}` is missing", param=param)
    message = first["msg"][:1].lower() + first["msg"][1:]
    return Refusal(f"`{param}`: {message}", param=param)
