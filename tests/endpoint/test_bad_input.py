"""Bad requests: each is refused with the right status, in OpenAI's form, naming what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import openai
import pytest

from endpoint.served import serving
from practicum.endpoint import Delta, make_app
from practicum.endpoint.connection import read_body
from practicum.endpoint.refusals import Refusal
from practicum.errors import InfraError, PolicyDead, UsageError
from practicum.testing.streaming import FakeStreamingPolicy
from practicum.types import StopReason

HELLO: Any = [{"role": "user", "content": "hi"}]
CHAT, TEXT = "chat/completions", "completions"


def client(policy: FakeStreamingPolicy, **options: Any) -> httpx.AsyncClient:
    app = make_app(policy, model_id="fake", **options)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost/v1/")


def fake() -> FakeStreamingPolicy:
    return FakeStreamingPolicy(lambda prompt, rng: "x", context_length=100)


TABLE: list[tuple[str, dict[str, Any], str | None, str]] = [
    # where, what beside the least that is needed, the field to blame, words of the message
    (CHAT, {"temprature": 1}, "temprature", "Did you mean 'temperature'?"),
    (CHAT, {"prompt": "x"}, "prompt", "unknown field"),
    (TEXT, {"messages": HELLO}, "messages", "unknown field"),
    (CHAT, {"temperature": -1}, "temperature", "greater than or equal to 0"),
    (CHAT, {"temperature": "hot"}, "temperature", "valid number"),
    (CHAT, {"top_p": 0}, "top_p", "greater than 0"),
    (CHAT, {"n": 0}, "n", "greater than or equal to 1"),
    (CHAT, {"n": True}, "n", "valid integer"),
    (CHAT, {"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "contradict"),
    (CHAT, {"max_tokens": 99}, "messages", "maximum context length of this model is 100"),
    (TEXT, {"prompt": "x" * 101}, "prompt", "the prompt has 101"),
    (TEXT, {"prompt": ""}, "prompt", "empty"),
    (TEXT, {"prompt": []}, "prompt", "empty list"),
    (TEXT, {"prompt": [[]]}, "prompt", "a list of either"),
    (TEXT, {"prompt": [1.5]}, "prompt", "a list of either"),
    (TEXT, {"prompt": {"a": 1}}, "prompt", "valid"),
    (TEXT, {"prompt": ["x"] * 257}, "prompt", "at most 256"),
    (TEXT, {"prompt": [1, 999]}, None, "token id 999 is outside the vocabulary"),
    (TEXT, {"prompt": [-1]}, None, "token id -1 is outside the vocabulary"),
    (TEXT, {"prompt": [-1], "stream": True}, None, "token id -1 is outside the vocabulary"),
    (TEXT, {"suffix": "x"}, "suffix", "not supported here"),
    (TEXT, {"best_of": 2}, "best_of", "ask for `n`"),
    (TEXT, {"echo": True, "logprobs": 1}, "echo", "prompts are not scored"),
    (TEXT, {"logprobs": 21}, "logprobs", "less than or equal to 20"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs", "needs `logprobs: true`"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    (CHAT, {"stop": ["a", ""]}, "stop", "must not be empty"),
    (CHAT, {"stop": ["a", 1]}, "stop", "valid string"),
    (CHAT, {"stop": ["a"] * 33}, "stop", "at most 32"),
    (CHAT, {"logit_bias": {"x": 1}}, "logit_bias", "takes token ids, not 'x'"),
    (CHAT, {"logit_bias": {"1": 101}}, "logit_bias", "between -100 and 100"),
    (CHAT, {"seed": 1 << 63}, "seed", "less than"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options", "needs `stream: true`"),
    (
        CHAT,
        {"stream": True, "stream_options": {"include_usag": True}},
        "stream_options.include_usag",
        "Did you mean 'include_usage'?",
    ),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format", "must be `text`"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema"),
    (CHAT, {"structured_outputs": {}}, "structured_outputs", "exactly one"),
    (
        CHAT,
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "structured_outputs",
        "exactly one",
    ),
    (
        CHAT,
        {"structured_outputs": {"regx": "a"}},
        "structured_outputs.regx",
        "Did you mean 'regex'?",
    ),
    (
        CHAT,
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "response_format",
        "contradict",
    ),
    (CHAT, {"tools": [{"type": "function"}]}, "tools", "tools[0]"),
    (
        CHAT,
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]},
        "tools",
        "tools[0].function.parameters",
    ),
    (CHAT, {"tool_choice": "required"}, "tool_choice", "needs `tools`"),
    (CHAT, {"tool_choice": "maybe"}, "tool_choice", "must be"),
    (
        CHAT,
        {"tool_choice": {"type": "function", "function": {"name": "a"}}},
        "tool_choice",
        "not in `tools`",
    ),
    (CHAT, {"messages": []}, "messages", "at least 1 item"),
    (CHAT, {"messages": "hi"}, "messages", "valid list"),
    (CHAT, {"messages": ["hi"]}, "messages", "`messages[0]` must be an object"),
    (CHAT, {"messages": [{"role": "robot", "content": ""}]}, "messages", "not 'robot'"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages", "`messages[0].content` is missing"),
    (CHAT, {"messages": [{"role": "user", "contents": "x"}]}, "messages", "Did you mean 'content'"),
    (CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages", "a string or a list"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages",
        "the model reads text only, no image_url",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
        "messages",
        "belongs to an assistant",
    ),
    (
        CHAT,
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}],
                }
            ]
        },
        "messages",
        "the arguments of 'f' are no JSON object",
    ),
    (CHAT, {"functions": []}, "functions", "use `tools`"),
    (CHAT, {"modalities": ["audio"]}, "modalities", "reads and writes text"),
]


@pytest.mark.parametrize(("path", "fields", "param", "words"), TABLE)
async def test_a_bad_request_names_what_is_wrong(
    path: str, fields: dict[str, Any], param: str | None, words: str
):
    least: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    if "prompt" in fields or "messages" in fields:
        least = least if path == CHAT and "prompt" in fields else {}
        least = {"prompt": "x"} if path == TEXT and "messages" in fields else least
    policy = fake()
    async with client(policy) as http:
        reply = await http.post(path, json={"model": "fake", **least, **fields})
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert words in error["message"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert policy.num_begun == 0


BODIES = [
    b"",
    b"{",
    b"[1]",
    b'"model"',
    b'{"model": "fake", "prompt": "x", "temperature": NaN}',
    b'{"model": "fake", "prompt": "\xff"}',
    b'{"model": "fake", "prompt": "\\ud800 alone"}',
    b'{"model": "fake", "prompt": "\\udc00"}',
    b'{"model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model": "fake"}',
    b'{"prompt": "x"}',
    b'{"model": null, "prompt": "x"}',
    b'{"model": "fake", "prompt": "x", "temperature": 1e999}',
    b'{"model": "fake", "prompt": "x", "seed": 123456789012345678901234567890}',
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:50]))
async def test_a_body_that_is_no_request_is_refused(body: bytes):
    async with client(fake()) as http:
        reply = await http.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]


async def test_null_is_as_good_as_nothing_and_accounting_is_ignored():
    async with client(fake()) as http:
        fields = {"stop": None, "n": None, "user": "ada", "store": False, "modalities": ["text"]}
        reply = await http.post(CHAT, json={"model": "fake", "messages": HELLO, **fields})
    assert reply.status_code == 200


async def test_statuses_become_the_clients_own_exceptions():
    async with serving(fake()) as served:
        chat = served.openai.chat.completions.create
        with pytest.raises(openai.NotFoundError) as missing:
            await chat(model="fakr", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as long:
            await chat(model="fake", messages=[{"role": "user", "content": "x" * 200}])
        with pytest.raises(openai.NotFoundError):
            await served.openai.models.retrieve("other")
        assert (await served.openai.models.retrieve("fake")).id == "fake"
        assert [model.id async for model in served.openai.models.list()] == ["fake"]
    assert missing.value.code == "model_not_found"
    assert "Did you mean 'fake'?" in str(missing.value)
    assert long.value.code == "context_length_exceeded"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", CHAT, 405), ("POST", "no", 404)])
async def test_what_is_not_there_is_refused_in_the_same_form(method: str, path: str, status: int):
    async with client(fake()) as http:
        reply = await http.request(method, path, json={})
    assert reply.status_code == status
    assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_that_is_too_long_is_refused_whether_it_says_so_or_not():
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 60, "more_body": True}

    for headers in ([(b"content-length", b"101")], []):
        with pytest.raises(Refusal, match="longer than 100 bytes") as refused:
            await read_body({"headers": headers}, receive, 100)
        assert refused.value.status == 413


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PolicyDead("the engine has stopped (OutOfMemory)"), 503, "engine_dead"),
        (InfraError("the disk is full"), 500, None),
        (UsageError("the schema cannot be used"), 400, None),
        (ZeroDivisionError("secret detail"), 500, None),
    ],
)
async def test_an_error_before_the_first_token_has_its_status(
    stream: bool, error: Exception, status: int, code: str | None
):
    async def fail() -> None:
        raise error

    policy = FakeStreamingPolicy(lambda prompt, rng: "x", between=fail)
    async with client(policy) as http:
        reply = await http.post(
            CHAT, json={"model": "fake", "messages": HELLO, "stream": stream, "n": 2}
        )
        health = (await http.get("http://localhost/health")).status_code
    told = reply.json()["error"]
    assert (reply.status_code, told["code"]) == (status, code)
    assert (str(error) in told["message"]) == (not isinstance(error, ZeroDivisionError))
    assert health == (503 if code == "engine_dead" else 200)
    assert reply.headers["x-should-retry"] == "false"
    assert not policy.running


@pytest.mark.parametrize("stream", [False, True])
async def test_an_aborted_completion_is_no_answer(stream: bool):
    policy = FakeStreamingPolicy(lambda prompt, rng: "x")

    async def aborted(prompt_ids: Any, sampling: Any) -> AsyncGenerator[Delta]:
        yield Delta(stop_reason=StopReason.ABORTED)

    policy.stream = aborted
    async with client(policy) as http:
        reply = await http.post(CHAT, json={"model": "fake", "messages": HELLO, "stream": stream})
    assert reply.status_code == (200 if stream else 503)  # the stream had begun
    assert '"code":"aborted"' in reply.text


async def test_an_error_in_the_middle_of_a_stream_is_an_event_and_ends_it():
    num_tokens = 0

    async def fail_at_third() -> None:
        nonlocal num_tokens
        num_tokens += 1
        if num_tokens == 3:
            raise PolicyDead("the engine has stopped")

    policy = FakeStreamingPolicy(lambda prompt, rng: "abcdef", between=fail_at_third)
    async with serving(policy) as served:
        stream = await served.openai.chat.completions.create(
            model="fake", messages=HELLO, stream=True
        )
        seen: list[str] = []

        async def watch() -> None:
            async for chunk in stream:
                seen.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError, match="the engine has stopped"):
            await watch()
    assert "".join(seen) == "ab"


async def test_events_are_lines_of_data_and_the_last_says_done():
    async with client(fake()) as http:
        reply = await http.post(CHAT, json={"model": "fake", "messages": HELLO, "stream": True})
    assert reply.headers["content-type"] == "text/event-stream"
    events = reply.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["choices"] for event in events[:-2])


async def test_a_bad_request_does_not_disturb_its_neighbours():
    policy = fake()
    async with serving(policy) as served:

        async def ask(prompt: Any) -> str:
            try:
                reply = await served.openai.completions.create(model="fake", prompt=prompt)
            except openai.BadRequestError:
                return "refused"
            return reply.choices[0].text

        prompts: list[Any] = ["good", [999], "also good", ["x", [-1]]]
        texts = await asyncio.gather(*map(ask, prompts))
    assert texts == ["x", "refused", "x", "refused"]
    assert not policy.running
