"""Chat templates, beside transformers' rendering of the same ones."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoTokenizer

from practicum.errors import UsageError
from practicum.policy.model.chat_template import ChatTemplate
from practicum.policy.model.tiny import write_tiny
from practicum.policy.model.tokens import Tokens

ROLES = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<image>"}

HERMES = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.multi_step and message.role == "user" and message.content is string %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
        {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {%- if call.function %}{%- set call = call.function %}{%- endif %}
        {{- '<tool_call>' + call.name + ' ' }}
        {{- call.arguments if call.arguments is string else call.arguments | tojson }}
        {{- '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
{{ ns.last }}{{ ns.multi_step }}"""

MACROS = """{%- macro shown(value, indent=0) -%}
    {%- for key, item in value | dictsort -%}
        {{ ' ' * indent }}{{ key | title }}: {{ item | tojson(indent=2) }}
    {%- endfor -%}
{%- endmacro -%}
{{ bos_token }}{{ image_token }}{{ unk_token is defined }}
{% for message in messages if message.role != 'tool' %}
  {% if loop.index0 > 2 %}{% break %}{% endif %}
  {% if message.role == 'system' %}{% continue %}{% endif %}
    [{{ loop.index }}/{{ loop.length }}] {{ shown(message) }}
{% endfor %}
{{ eos_token }}"""

TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m['content'] }}\n{% endfor %}",
    "hermes": HERMES,
    "macros and loop controls": MACROS,
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=1, sort_keys=true) }}"
    "{{ tools | tojson(ensure_ascii=true, separators=(',', ':')) }}",
    "generation": "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}"
    "{{ m.role }}{{ x }}{% endgeneration %}{{ x }}\n{% endfor %}",
    "names": "{{ documents }} {{ documents is none }} {{ tools is none }} {{ nothing }} "
    "{{ add_generation_prompt }} {{ range(3) | list }} {{ dict(a=1, b=messages) }} "
    "{{ dict.fromkeys(['x', 'y'], 0) }} {{ dict({'q': 1}) }} {{ lipsum is defined }}",
    "namespace": "{% set ns = namespace(self=1, found=[]) %}{% for m in messages %}"
    "{% set ns.found = ns.found + [m.role] %}{% endfor %}{{ ns.found }}{{ ns.self }}",
    "blocks": "  {% if true %}  \n   a\n  {% endif %}  \n  {#- note -#}  b\n",
    "thinking": "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|"
    "{{ m.content is defined }}\n{% endfor %}",
    "filters": "{% for m in messages %}{{ m.content | trim | replace('a', 'ä') | upper }}"
    "{{ m.content.split('x')[-1] }}{{ m.items() | list | length }}{{ m | length }}\n{% endfor %}",
}

REFUSING = {
    "raises": "{{ raise_exception('roles must alternate') }}",
    "undefined": "{{ messages[0].nothing.nothing }}",
    "wrong type": "{{ 1 + messages[0].role }}",
    "syntax": "{% if %}",
    "private": "{{ messages.__class__.__mro__ }}",
    "private name": "{% set ns = namespace(_x=1) %}",
    "private name later": "{% set ns = namespace() %}{% set ns.__x = 1 %}",
    "changes": "{{ messages.append(1) }}",
    "no file": "{% include 'other.jinja' %}",
    "a type": "{{ dict.__subclasses__() }}",
}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für <einen> Ort & 'Tag'",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]

TEXT = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
CALL = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {"name": TEXT, "arguments": TEXT | st.dictionaries(TEXT, JSON, max_size=2)}
        ),
    }
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXT},
    optional={
        "tool_calls": st.none() | st.lists(CALL, max_size=2),
        "name": st.none() | TEXT,
        "reasoning_content": st.none() | TEXT,
        "reasoning": st.none() | TEXT,
        "thinking": TEXT,
    },
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With the same roles, where transformers takes them from."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["pad_token"]
    path.write_text(json.dumps(settings | ROLES))
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def theirs(tokenizer: Any, template: str, messages: Sequence[Any], tools: Any) -> str:
    return tokenizer.apply_chat_template(
        messages,
        tools=tools,
        chat_template=template,
        tokenize=False,
        add_generation_prompt=True,
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_any_chat_is_rendered_as_transformers_renders_it(tokenizer: Any, name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], ROLES)

    @settings(deadline=None, max_examples=50)
    @given(
        messages=st.lists(MESSAGE, min_size=1, max_size=5), tools=st.sampled_from([None, [], TOOLS])
    )
    def holds(messages: list[dict[str, Any]], tools: Any) -> None:
        expected = theirs(tokenizer, TEMPLATES[name], messages, tools)
        assert template.render(messages, tools) == expected

    holds()


@pytest.mark.parametrize("name", REFUSING)
def test_what_transformers_refuses_is_refused(tokenizer: Any, name: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises((TemplateError, TypeError)):
        theirs(tokenizer, REFUSING[name], messages, None)
    with pytest.raises((TemplateError, TypeError)):
        ChatTemplate(REFUSING[name], ROLES).render(messages, None)


def test_a_template_knows_the_day() -> None:
    today = ChatTemplate("{{ strftime_now('%d %B %Y') }}", {}).render([{}], None)
    assert datetime.strptime(today, "%d %B %Y").year >= 2024


def test_messages_and_tools_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": None, "reasoning": "r"}]
    ChatTemplate(TEMPLATES["thinking"], {}).render(messages, None)
    assert messages == [{"role": "user", "content": None, "reasoning": "r"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(tmp_path)
    return tmp_path


def declare(folder: Path, template: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))


def rendered(folder: Path, tools: Any = None) -> str:
    tokens = Tokens(folder)
    text = tokens.decode(tokens.render_chat([{"role": "user", "content": "hi"}], tools))
    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    assert text == theirs(loaded, None, [{"role": "user", "content": "hi"}], tools)  # pyright: ignore
    return text


NAMED = [
    {"name": "default", "template": "plain"},
    {"name": "tool_use", "template": "with {{ tools | length }} tools"},
    {"name": "rag", "template": "with documents"},
]


def test_a_folder_may_have_a_template_of_its_own_for_tools(folder: Path) -> None:
    declare(folder, NAMED)
    assert rendered(folder) == "plain"
    assert rendered(folder, TOOLS) == "with 1 tools"
    assert rendered(folder, []) == "with 0 tools"


def test_a_template_in_a_file_wins(folder: Path) -> None:
    declare(folder, NAMED)
    (folder / "chat_template.jinja").write_text("from a file\n\n")
    assert rendered(folder, TOOLS) == rendered(folder) == "from a file\n"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    assert (rendered(folder), rendered(folder, TOOLS)) == ("from a file\n", "for tools")


def test_a_folder_without_a_template_for_a_chat_is_named(folder: Path) -> None:
    declare(folder, NAMED[1:])
    tokens = Tokens(folder)
    assert tokens.render_chat([{"role": "user", "content": "hi"}], TOOLS)
    with pytest.raises(UsageError, match="only chat templates for rag, tool_use"):
        tokens.render_chat([{"role": "user", "content": "hi"}])


def test_a_template_that_is_none_is_the_folders_fault(folder: Path) -> None:
    declare(folder, "{% if %}")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json refuses"):
        Tokens(folder).render_chat([{"role": "user", "content": "hi"}])


def test_a_chat_without_messages_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="at least one message"):
        Tokens(folder).render_chat([])


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ '%d' % messages[0].content }}", "TypeError"),
        ("{{ 'x'.index('y') }}", "ValueError"),
        ("{{ '{5}'.format() }}", "IndexError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% break %}", "SyntaxError"),
        ("{{ 'x'.encode('no-such-code') }}", "LookupError"),
        ("{{ 2 ** (2 ** 40) }}", r"`\*\*` in a chat template is too large"),
        ("{{ 'x' * 10 ** 12 }}", r"`\*` in a chat template is too large"),
        ("{{ (10 ** 3000) * (10 ** 3000) }}", r"`\*` in a chat template is too large"),
        ("\ue0005\ue000", r"writes U\+E000 5 U\+E000"),
        ("{{ '\\ud800' }}", r"does not encode '\\ud800': UnicodeEncodeError"),
        ("{{ raise_exception('\\ud800') }}", r"refuses .*\\ud800"),
    ],
)
def test_a_template_that_fails_is_named_with_its_failure(
    folder: Path, template: str, named: str
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(UsageError, match=named) as refused:
        Tokens(folder).render_chat([{"role": "user", "content": "hi"}])
    assert str(folder) in str(refused.value)
    assert str(refused.value).encode()


def test_products_of_an_ordinary_size_are_computed() -> None:
    text = "{{ '=' * 3 }}{{ 3 * [1] }}{{ 2 ** 10 * 3 }}{{ 1.5 * 2 }}"
    assert ChatTemplate(text, {}).render([{}], None) == "===[1, 1, 1]30723.0"


@pytest.mark.parametrize(
    "declared", [[{"name": "default"}], ["a"], 5, {"default": 5}, [{"name": 3, "template": "a"}]]
)
def test_a_declared_template_of_another_form_is_refused(folder: Path, declared: object) -> None:
    declare(folder, declared)
    with pytest.raises(UsageError, match=r"`chat_template` in .*tokenizer_config\.json must be"):
        Tokens(folder)


def test_a_template_file_that_cannot_be_read_is_named(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"chat_template\.jinja is not UTF-8"):
        Tokens(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match=r"cannot read .*chat_template\.jinja: Is a directory"):
        Tokens(folder)
