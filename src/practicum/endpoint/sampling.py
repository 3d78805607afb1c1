"""From a request's fields to `Sampling`, and from its formats to a `Constraint`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from practicum.endpoint.refusals import Refusal
from practicum.endpoint.requests import ChatBody, StructuredOutputs, Wanted
from practicum.endpoint.streaming import Json
from practicum.sampling import Constraint, Sampling

MAX_STOPS = 32
ANY_OBJECT = '{"type": "object"}'


def sampling_of(
    request: Wanted,
    *,
    max_new_tokens: int,
    top_logprobs: int = 0,
    constraint: Constraint | None = None,
) -> Sampling:
    """How every completion of a request is sampled, but for the seed of each (see `seeded`)."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop
    if "" in stops:
        raise Refusal("a stop string must not be empty", param="stop")
    if len(stops) > MAX_STOPS:
        raise Refusal(f"at most {MAX_STOPS} stop strings, not {len(stops)}", param="stop")
    return Sampling(
        max_new_tokens=max_new_tokens,
        temperature=request.temperature,
        stop=tuple(stops),
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        top_k=max(request.top_k, 0),
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=tuple(_biases(request.logit_bias)),
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        constraint=constraint,
        top_logprobs=top_logprobs,
    )


def seeded(sampling: Sampling, n: int) -> list[Sampling]:
    """One for each of the `n` completions of a prompt: the first has the seed as it was given."""
    return [replace(sampling, seed=sampling.seed + index) for index in range(n)]


def _biases(logit_bias: dict[str, float]) -> list[tuple[int, float]]:
    biases: list[tuple[int, float]] = []
    for token, bias in logit_bias.items():
        if not (token.isascii() and token.isdigit()):
            raise Refusal(f"`logit_bias` takes token ids, not {token!r}", param="logit_bias")
        if not -100 <= bias <= 100:
            raise Refusal(
                f"the bias of token {token} must be between -100 and 100, not {bias}",
                param="logit_bias",
            )
        biases.append((int(token), bias))
    return biases


def constraint_of(request: Wanted, tools: Sequence[Json]) -> Constraint | None:
    """The language that the completion must belong to. Raises Refusal if two are asked for."""
    named: dict[str, Constraint | None] = {}
    if request.structured_outputs is not None:
        named["structured_outputs"] = _structured(request.structured_outputs)
    if isinstance(request, ChatBody):
        if request.response_format is not None:
            named["response_format"] = _response_format(request.response_format)
        named["tool_choice"] = _tool_choice(request.tool_choice, tools)
    wanted = {name: constraint for name, constraint in named.items() if constraint is not None}
    if len(wanted) > 1:
        first, second = list(wanted)[:2]
        raise Refusal(f"`{first}` and `{second}` contradict each other; give one", param=second)
    return next(iter(wanted.values()), None)


def _structured(outputs: StructuredOutputs) -> Constraint:
    given: list[Constraint] = []
    if isinstance(outputs.json_, str):
        given.append(Constraint("json_schema", outputs.json_))
    elif outputs.json_ is not None:
        given.append(Constraint("json_schema", json.dumps(outputs.json_)))
    if outputs.regex is not None:
        given.append(Constraint("regex", outputs.regex))
    if outputs.choice is not None:
        given.append(Constraint("choice", json.dumps(outputs.choice)))
    if len(given) != 1:
        raise Refusal(
            "`structured_outputs` takes exactly one of `json`, `regex`, `choice`",
            param="structured_outputs",
        )
    return given[0]


def _response_format(form: Json) -> Constraint | None:
    match form:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Constraint("json_schema", ANY_OBJECT)
        case {"type": "json_schema", "json_schema": {"schema": schema}} if _is_object(schema):
            return Constraint("json_schema", json.dumps(schema))
        case {"type": "json_schema"}:
            raise Refusal(
                "`response_format` of type `json_schema` needs `json_schema.schema`, an object",
                param="response_format",
            )
        case _:
            raise Refusal(
                "`response_format.type` must be `text`, `json_object` or `json_schema`",
                param="response_format",
            )


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _tool_choice(choice: str | Json | None, tools: Sequence[Json]) -> Constraint | None:
    """For a call that must be made: exactly one call, as `tool_calls.read_calls` reads it."""
    match choice:
        case None | "none" | "auto":
            return None
        case "required":
            allowed = list(tools)
        case {"type": "function", "function": {"name": str(name)}}:
            allowed = [tool for tool in tools if tool["function"]["name"] == name]
            if not allowed:
                raise Refusal(f"`tool_choice` names {name!r}, not in `tools`", param="tool_choice")
        case _:
            raise Refusal(
                "`tool_choice` must be `none`, `auto`, `required`, or "
                '{"type": "function", "function": {"name": ...}}',
                param="tool_choice",
            )
    if not allowed:
        raise Refusal("`tool_choice` needs `tools`", param="tool_choice")
    return Constraint("json_schema", json.dumps(_call_schema(allowed)))


def _call_schema(tools: Sequence[Json]) -> Json:
    """One call of one of the tools. Definitions move to the top, where `#/$defs/` finds them."""
    definitions: dict[str, Any] = {}
    calls: list[Json] = []
    for tool in tools:
        function = tool["function"]
        parameters: dict[str, Any] = dict(function.get("parameters") or {"type": "object"})
        for name, definition in parameters.pop("$defs", {}).items():
            if definitions.setdefault(name, definition) != definition:
                raise Refusal(
                    f"two tools define {name!r} differently; name one tool in `tool_choice`",
                    param="tools",
                )
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls} | ({"$defs": definitions} if definitions else {})
