"""Calls out of text, in every form, however the text is cut into pieces."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.endpoint.tool_calls import CallReader, ToolCall

NAMES = {"weather", "time"}
BONN = ToolCall("weather", '{"place": "Bonn"}')
NOW = ToolCall("time", "{}")

CASES: dict[str, tuple[str, str, list[ToolCall]]] = {
    "hermes": (
        '<tool_call>\n{"name": "weather", "arguments": {"place": "Bonn"}}\n</tool_call>',
        "",
        [BONN],
    ),
    "words before, two calls": (
        'See:\n\n<tool_call>{"name": "weather", "arguments": {"place": "Bonn"}}</tool_call>\n'
        '<tool_call>{"name": "time", "arguments": {}}</tool_call>',
        "See:",
        [BONN, NOW],
    ),
    "a list between tags": (
        '<tool_call>[{"name": "weather", "arguments": {"place": "Bonn"}}, {"name": "time"}]'
        "</tool_call>",
        "",
        [BONN, NOW],
    ),
    "llama": ('{"name": "weather", "parameters": {"place": "Bonn"}}', "", [BONN]),
    "llama, several": (
        '<|python_tag|>{"name": "weather", "parameters": {"place": "Bonn"}}; '
        '{"name": "time", "parameters": {}}',
        "",
        [BONN, NOW],
    ),
    "a bare list": ('[{"name": "time", "arguments": {}}]', "", [NOW]),
    "arguments in a string": (
        '{"name": "weather", "arguments": "{\\"place\\": \\"Bonn\\"}"}',
        "",
        [BONN],
    ),
    "the end tag was a stop": ('<tool_call>{"name": "time"}', "", [NOW]),
    "tags inside an argument": (
        '<tool_call>{"name": "weather", "arguments": {"place": "a</tool_call>;b"}}</tool_call>',
        "",
        [ToolCall("weather", '{"place": "a</tool_call>;b"}')],
    ),
    "words after": ('<tool_call>{"name": "time"}</tool_call> Done.', " Done.", [NOW]),
}

NO_CALLS = [
    "",
    "   ",
    "plain words",
    '{"name": "delete_everything", "arguments": {}}',
    '{"name": "weather", "arguments": ',
    '{"name": "weather", "arguments": [1]}',
    '{"name": "weather", "arguments": {"a": NaN}}',
    '[{"name": "time"}, {"name": "unknown"}]',
    '{"answer": 42}',
    "[1, 2, 3]",
    "a < b and <tool_ is not a tag",
    "<tool_call>nonsense</tool_call>",
    '<tool_call>{"name": "time"} and more</tool_call>',
    '{"name": "time"} is how one would ask',
    'it says {"name": "time"}',
    "<|python_tag|>print(1)",
    "<" * 5,
    '{"a":' * 5000,
]


def read(pieces: Sequence[str]) -> tuple[str, list[ToolCall]]:
    reader = CallReader(NAMES)
    shown = [reader.push(piece) for piece in pieces]
    rest, calls = reader.finish()
    return "".join(shown) + rest, calls


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_read_in_every_form(name: str):
    text, shown, calls = CASES[name]
    assert read([text]) == (shown, calls)


@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_no_call_is_text_and_nothing_is_lost(text: str):
    assert read([text]) == (text, [])


@given(data=st.data())
def test_the_result_does_not_depend_on_how_the_text_arrives(data: st.DataObject):
    mix = st.lists(
        st.sampled_from([text for text, _, _ in CASES.values()] + NO_CALLS[:-1] + ["<tool", " "]),
        max_size=3,
    )
    text = "".join(data.draw(mix))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)])]
    assert read(pieces) == read([text])


def test_text_is_shown_at_once_until_a_call_may_begin():
    reader = CallReader(NAMES)
    assert reader.push("One moment") == "One moment"
    assert reader.push(", please.\n<tool") == ", please."
    assert reader.push('_call>{"name": "time"') == ""
    assert reader.push("}</tool_call>") == ""
    assert reader.finish() == ("", [NOW])


def test_a_tag_that_turns_out_to_be_none_is_shown():
    reader = CallReader(NAMES)
    assert reader.push("a <tool") == "a"
    assert reader.push("box>") == " <toolbox>"


def test_arguments_stay_the_json_they_were():
    _, calls = read(['{"name": "weather", "arguments": {"z": [1.5, null, "ü"], "a": true}}'])
    assert json.loads(calls[0].arguments) == {"z": [1.5, None, "ü"], "a": True}
