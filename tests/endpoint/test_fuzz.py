"""Whatever is sent, the answer is a reply or a refusal, never a failure of the server."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.endpoint import make_app
from practicum.testing.streaming import FakeStreamingPolicy

JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "user", "function", "text", "json_schema", "auto", "{}", "é\0"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "function", "name", "arguments", "role", "content", "text", "schema"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
TEXT = st.text(max_size=8) | st.sampled_from(["<tool_call>", "{", "[1]", "\0"])
CALL = st.fixed_dictionaries({"name": TEXT, "arguments": TEXT | JSON})
TOOL = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": TEXT})}
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": TEXT | JSON},
    optional={"tool_calls": st.lists(st.fixed_dictionaries({"function": CALL}), max_size=2)},
)
BOTH: dict[str, Any] = {
    "n": st.integers(1, 3),
    "max_tokens": st.integers(1, 9),
    "stop": TEXT | st.lists(TEXT, max_size=2),
    "logit_bias": st.dictionaries(st.sampled_from(["1", "x", "²"]), st.integers(-1, 1)),
    "stream": st.booleans(),
    "return_token_ids": st.booleans(),
    "structured_outputs": st.dictionaries(st.sampled_from(["json", "regex", "choice"]), JSON),
}
CHAT_ONLY: dict[str, Any] = {
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 3),
    "tools": st.lists(TOOL | JSON, max_size=2),
    "tool_choice": st.sampled_from(["none", "auto", "required"]) | TOOL | JSON,
    "response_format": JSON,
    "parallel_tool_calls": st.booleans(),
}
TEXT_ONLY: dict[str, Any] = {"echo": st.booleans(), "logprobs": st.integers(0, 3)}


def body(needed: dict[str, Any], optional: dict[str, Any]) -> Any:
    """Mostly what could be meant, with something odd in it now and then."""
    odd = st.dictionaries(st.sampled_from([*needed, *optional]), JSON, max_size=1)
    usual = st.fixed_dictionaries(needed, optional=optional)
    return st.tuples(usual, st.just({}) | odd).map(lambda parts: {**parts[0], **parts[1]})


CHAT = body({"messages": st.lists(MESSAGE, min_size=1, max_size=3)}, BOTH | CHAT_ONLY)
COMPLETION = body(
    {"prompt": TEXT | st.lists(TEXT | st.lists(st.integers(-1, 257)), max_size=3)}, BOTH | TEXT_ONLY
)


@settings(max_examples=150, deadline=None)
@given(
    asked=st.one_of(
        CHAT.map(lambda fields: ("/v1/chat/completions", fields)),
        COMPLETION.map(lambda fields: ("/v1/completions", fields)),
    )
)
async def test_no_body_makes_the_server_fail(asked: tuple[str, dict[str, Any]]):
    path, fields = asked
    policy = FakeStreamingPolicy(
        lambda prompt, rng: prompt[-20:] + "<tool_call>", context_length=500
    )
    transport = httpx.ASGITransport(make_app(policy, model_id="fake"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        reply = await http.post(path, json={"model": "fake", **fields})
    assert reply.status_code in (200, 400), reply.text
    assert not policy.running


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
