"""Tools over HTTP: offered to the model, asked for by it, answered to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from endpoint.served import serving
from practicum.endpoint.messages import in_words
from practicum.testing import FakePolicy
from practicum.testing.streaming import FakeStreamingPolicy
from practicum.types import Message

CHAT: Any = [{"role": "user", "content": "Is it raining?"}]
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Bonn"}}\n</tool_call>'


async def test_a_call_comes_whole_and_as_the_last_piece_of_a_stream():
    policy = FakeStreamingPolicy(lambda prompt, rng: f"Let me look.\n{CALL}")
    async with serving(policy) as served:
        create = served.openai.chat.completions.create
        whole = await create(model="fake", messages=CHAT, tools=TOOLS)
        stream = await create(model="fake", messages=CHAT, tools=TOOLS, stream=True)
        parts = [chunk.choices[0] async for chunk in stream]
    message = whole.choices[0].message
    assert whole.choices[0].finish_reason == "tool_calls" == parts[-1].finish_reason
    assert message.content == "Let me look."
    assert "".join(part.delta.content or "" for part in parts) == message.content
    (call,) = message.tool_calls
    ((streamed,),) = [part.delta.tool_calls for part in parts if part.delta.tool_calls]
    assert call.function == type(call.function)(name="weather", arguments='{"place": "Bonn"}')
    assert streamed.function.model_dump() == call.function.model_dump()
    assert streamed.index == 0
    assert streamed.id.startswith("call_")


async def test_a_call_without_words_has_no_content():
    async with serving(FakeStreamingPolicy(lambda prompt, rng: CALL)) as served:
        reply = await served.openai.chat.completions.create(
            model="fake", messages=CHAT, tools=TOOLS
        )
    assert reply.choices[0].message.content is None


async def test_only_one_call_where_they_may_not_be_parallel():
    async with serving(FakeStreamingPolicy(lambda prompt, rng: CALL + CALL)) as served:
        counts = [
            len(
                (
                    await served.openai.chat.completions.create(
                        model="fake", messages=CHAT, tools=TOOLS, parallel_tool_calls=parallel
                    )
                )
                .choices[0]
                .message.tool_calls
            )
            for parallel in (True, False)
        ]
    assert counts == [2, 1]


async def test_without_tools_or_with_none_chosen_text_is_text():
    policy = FakeStreamingPolicy(lambda prompt, rng: f"{'tools:' in prompt} {CALL}")
    async with serving(policy) as served:
        create = served.openai.chat.completions.create
        plain = await create(model="fake", messages=CHAT)
        none = await create(model="fake", messages=CHAT, tools=TOOLS, tool_choice="none")
    assert plain.choices[0].message.content == none.choices[0].message.content == f"False {CALL}"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["weather", "time"]),
        ({"type": "function", "function": {"name": "time"}}, ["time"]),
    ],
)
async def test_a_call_that_must_be_made_is_a_constraint(choice: Any, names: list[str]):
    policy = FakeStreamingPolicy(lambda prompt, rng: '{"name": "time", "arguments": {}}')
    async with serving(policy) as served:
        reply = await served.openai.chat.completions.create(
            model="fake", messages=CHAT, tools=TOOLS, tool_choice=choice
        )
    constraint = policy.samplings[0].constraint
    assert constraint is not None
    schemas = json.loads(constraint.text)["anyOf"]
    assert [schema["properties"]["name"]["const"] for schema in schemas] == names
    assert reply.choices[0].message.tool_calls[0].function.name == "time"


async def test_definitions_inside_a_tool_are_found_from_the_top():
    parameters = {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "$defs": {"Place": {"type": "string"}},
    }
    tools: Any = [{"type": "function", "function": {"name": "w", "parameters": parameters}}]
    policy = FakeStreamingPolicy(lambda prompt, rng: "x")
    async with serving(policy) as served:
        await served.openai.chat.completions.create(
            model="fake", messages=CHAT, tools=tools, tool_choice="required"
        )
    constraint = policy.samplings[0].constraint
    assert constraint is not None
    assert json.loads(constraint.text)["$defs"] == {"Place": {"type": "string"}}


async def test_the_answer_to_a_call_goes_back_as_the_client_got_it():
    prompts: list[str] = []

    def answer(prompt: str, rng: object) -> str:
        prompts.append(prompt)
        return CALL if len(prompts) == 1 else "Yes."

    async with serving(FakeStreamingPolicy(answer)) as served:
        create = served.openai.chat.completions.create
        first = (await create(model="fake", messages=CHAT, tools=TOOLS)).choices[0].message
        told = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
        chat: Any = [*CHAT, first.model_dump(), told]
        second = await create(model="fake", messages=chat, tools=TOOLS)
    assert second.choices[0].message.content == "Yes."
    lines = [json.loads(line) for line in prompts[1].splitlines()[1:]]
    assert lines[1]["tool_calls"][0]["function"]["arguments"] == {"place": "Bonn"}
    assert lines[2]["content"] == "rain"


async def test_a_model_without_a_form_for_tools_is_told_in_words():
    policy = FakePolicy(lambda prompt, rng: CALL if '"weather"' in prompt else "no tools")
    async with serving(policy) as served:
        reply = await served.openai.chat.completions.create(
            model="fake", messages=CHAT, tools=TOOLS
        )
    assert reply.choices[0].message.tool_calls[0].function.name == "weather"


async def test_a_template_that_passes_over_tools_is_noticed():
    policy = FakeStreamingPolicy(lambda prompt, rng: CALL if "<tools>" in prompt else "no tools")
    policy.render_chat = lambda messages, tools: [1, 2, 3]  # pyright: ignore
    async with serving(policy) as served:
        reply = await served.openai.chat.completions.create(
            model="fake", messages=CHAT, tools=TOOLS
        )
    assert reply.choices[0].message.tool_calls[0].function.name == "weather"


def test_in_words_calls_and_results_are_written_as_they_are_read():
    call = {"type": "function", "function": {"name": "time", "arguments": {}}}
    told = in_words(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "noon"},
        ],
        TOOLS,
    )
    assert told[0].role == "system"
    assert told[0].content.startswith("Be brief.\n\n")
    assert told[1:] == [
        Message("assistant", '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'),
        Message("user", "<tool_response>\nnoon\n</tool_response>"),
    ]
