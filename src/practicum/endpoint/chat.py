"""`POST /v1/chat/completions`: a chat in, the assistant's next message out, tool calls included."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from practicum.endpoint.logprobs import TokenNames, chat_logprobs
from practicum.endpoint.messages import read_messages, read_tools, render
from practicum.endpoint.refusals import Refusal
from practicum.endpoint.replies import Ask, Head, Job, finish_reason
from practicum.endpoint.requests import ChatBody
from practicum.endpoint.rooms import room
from practicum.endpoint.sampling import constraint_of, sampling_of, seeded
from practicum.endpoint.streaming import Delta, Json
from practicum.endpoint.tool_calls import CallReader, ToolCall
from practicum.protocols import Policy

CHUNK = "chat.completion.chunk"


def plan_chat(policy: Policy, request: ChatBody) -> Job:
    """What a request asks for. Raises Refusal or UsageError."""
    if request.top_logprobs is not None and not request.logprobs:
        raise Refusal("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    offered = read_tools(request.tools)
    constraint = constraint_of(request, offered)
    tools = [] if request.tool_choice == "none" else offered
    prompt_ids = render(policy, read_messages(request.messages), tools)
    max_new = room(
        policy,
        len(prompt_ids),
        _max_tokens(request),
        default=policy.context_length,
        param="messages",
    )
    sampling = sampling_of(
        request,
        max_new_tokens=max_new,
        top_logprobs=request.top_logprobs or 0,
        constraint=constraint,
    )
    names = frozenset(tool["function"]["name"] for tool in tools)
    wire = ChatWire(
        head=Head.of(policy, request.model, "chatcmpl"),
        prompt_ids=prompt_ids if request.return_token_ids else None,
        logprobs=TokenNames(policy) if request.logprobs else None,
        readers=[CallReader(names) for _ in range(request.n)] if tools else None,
        parallel_calls=request.parallel_tool_calls,
        n=request.n,
    )
    asks = [Ask(prompt_ids, one) for one in seeded(sampling, request.n)]
    options = request.stream_options
    return Job(asks, request.n, wire, request.stream, options is not None and options.include_usage)


def _max_tokens(request: ChatBody) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise Refusal(
            f"`max_tokens` ({old}) and `max_completion_tokens` ({new}) contradict each other; "
            "give one",
            param="max_tokens",
        )
    return old if new is None else new


@dataclass(frozen=True, slots=True)
class ChatWire:
    """One reply of this format. Satisfies `replies.Wire`."""

    head: Head
    prompt_ids: Sequence[int] | None
    """To be reported, None if that was not asked for."""
    logprobs: TokenNames | None
    readers: Sequence[CallReader] | None
    """One for each choice, None if no tools were offered: then text is just text."""
    parallel_calls: bool
    n: int

    def whole(self, choices: Sequence[Delta], usage: Json) -> Json:
        told: list[Json] = []
        for index, delta in enumerate(choices):
            text, calls = self._read(index, delta)
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if calls:
                message |= {"content": text or None, "tool_calls": [_call(call) for call in calls]}
            told.append(
                {
                    "index": index,
                    "message": message,
                    "finish_reason": _finish(delta, calls),
                    **self._details(delta),
                }
            )
        return self.head("chat.completion", told, usage=usage, **self._prompt())

    def opening(self) -> list[Json]:
        first = {"role": "assistant", "content": "", "refusal": None}
        return [
            self.head(CHUNK, [_chunk(index, first)], **(self._prompt() if index == 0 else {}))
            for index in range(self.n)
        ]

    def chunks(self, index: int, delta: Delta) -> list[Json]:
        text, calls = self._read(index, delta)
        told: list[dict[str, Any]] = []
        tells_tokens = self.logprobs is not None or self.prompt_ids is not None
        if text or (delta.token_ids and tells_tokens):
            told.append(_chunk(index, {"content": text}) | self._details(delta))
        if calls:
            listed = [{"index": place, **_call(call)} for place, call in enumerate(calls)]
            told.append(_chunk(index, {"tool_calls": listed}))
        if delta.stop_reason is not None:
            told.append(_chunk(index, {}) | {"finish_reason": _finish(delta, calls)})
        return [self.head(CHUNK, [choice]) for choice in told]

    def closing(self, usage: Json) -> Json:
        return self.head(CHUNK, [], usage=usage)

    def _read(self, index: int, delta: Delta) -> tuple[str, list[ToolCall]]:
        """What to show of a delta, and the calls if it is the last."""
        if self.readers is None:
            return delta.text, []
        reader = self.readers[index]
        text = reader.push(delta.text)
        if delta.stop_reason is None:
            return text, []
        rest, calls = reader.finish()
        return text + rest, calls if self.parallel_calls else calls[:1]

    def _details(self, delta: Delta) -> dict[str, Any]:
        details: dict[str, Any] = {"logprobs": None}
        if self.logprobs is not None:
            details["logprobs"] = chat_logprobs(delta, self.logprobs)
        if self.prompt_ids is not None:
            details["token_ids"] = list(delta.token_ids)
        return details

    def _prompt(self) -> dict[str, Any]:
        return {} if self.prompt_ids is None else {"prompt_token_ids": list(self.prompt_ids)}


def _chunk(index: int, delta: Json) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call(call: ToolCall) -> Json:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish(delta: Delta, calls: Sequence[ToolCall]) -> str | None:
    """A call that is whole counts, even if the model went on until it was cut off."""
    return "tool_calls" if calls else finish_reason(delta.stop_reason)
