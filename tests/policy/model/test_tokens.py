"""Prompts to token ids and back; what a message says never acts as a control token."""

import json
import shutil
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.errors import UsageError
from practicum.policy.model.tokens import Tokens
from practicum.types import Message

START, END = 257, 258


@pytest.fixture(scope="module")
def tokens(folder: Path) -> Tokens:
    return Tokens(folder)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "model"))


def rewrite(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    content |= changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def test_a_text_message_is_encoded_as_it_stands(tokens: Tokens) -> None:
    assert tokens.render([Message("text", " 3+4=")]) == list(b" 3+4=")


def test_the_author_of_a_text_prompt_may_write_control_tokens(tokens: Tokens) -> None:
    assert tokens.render([Message("text", "<|im_start|>x")]) == [START, ord("x")]


def test_a_chat_goes_through_the_template(tokens: Tokens) -> None:
    rendered = tokens.render([Message("system", "s"), Message("user", "u")])
    assert rendered == [
        *[START, *b"system\ns", END, *b"\n"],
        *[START, *b"user\nu", END, *b"\n"],
        *[START, *b"assistant\n"],
    ]


@given(st.text(max_size=20), st.sampled_from(["<|im_end|>", "<|im_start|>", "<|pad|>"]), st.text())
def test_control_tokens_in_a_chat_message_do_not_act(
    tokens: Tokens, before: str, control: str, after: str
) -> None:
    content = before + control + after
    rendered = tokens.render([Message("user", content), Message("tool", content)])
    assert [token for token in rendered if token > 255] == [START, END, START, END, START]
    assert tokens.decode(rendered).count(content) == 2


@given(st.text())
def test_plain_text_comes_back(tokens: Tokens, text: str) -> None:
    assert tokens.decode(tokens.encode(text)) == text


def test_plain_text_holds_no_control_tokens(tokens: Tokens) -> None:
    assert tokens.encode("<|im_end|>") == list(b"<|im_end|>")
    assert tokens.encode("a") == [ord("a")]  # the switch does not stick


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ((), "at least one message"),
        ((Message("text", "a"), Message("user", "b")), "not both.*text.*user"),
        ((Message("text", "a"), Message("text", "b")), "not both"),
    ],
)
def test_prompts_that_cannot_be_rendered_are_refused(
    tokens: Tokens, messages: tuple[Message, ...], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        tokens.render(messages)


def test_a_chat_without_a_template_is_refused(copied: Path) -> None:
    rewrite(copied / "tokenizer_config.json", chat_template=None)
    tokens = Tokens(copied)
    assert tokens.render([Message("text", "a")]) == [97]
    with pytest.raises(UsageError, match="no chat template"):
        tokens.render([Message("user", "a")])


def test_a_template_that_refuses_a_role_says_so(copied: Path) -> None:
    template = (
        "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    )
    rewrite(copied / "tokenizer_config.json", chat_template=template)
    with pytest.raises(UsageError, match=r"refuses the roles \['tool'\]: no tools here"):
        Tokens(copied).render([Message("tool", "a")])


def test_a_template_that_repeats_a_hostile_message_repeats_it_as_text(copied: Path) -> None:
    template = "{{ messages[0].content }}{{ messages[0].content }}"
    rewrite(copied / "tokenizer_config.json", chat_template=template)
    tokens = Tokens(copied)
    assert tokens.render([Message("user", "a")]) == [97, 97]
    assert tokens.render([Message("user", "<|im_end|>")]) == list(b"<|im_end|>") * 2


def test_all_ways_to_name_an_end_are_heard(copied: Path) -> None:
    """From the generation configuration, the model's, the tokenizer's, and by its usual name."""
    rewrite(copied / "generation_config.json", eos_token_id=[5, 6])
    rewrite(copied / "config.json", eos_token_id=7)
    rewrite(copied / "tokenizer_config.json", eos_token="<|pad|>")
    tokens = Tokens(copied)
    assert tokens.eos_ids == {5, 6, 7, 256, END}
    assert tokens.eos_id == 256


def test_nothing_touches_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("somebody tried to connect")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert Tokens(folder).largest_id == END


def test_a_folder_without_a_tokenizer_is_named(copied: Path) -> None:
    (copied / "tokenizer.json").unlink()
    (copied / "tokenizer_config.json").unlink()
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        Tokens(copied)


def test_a_broken_tokenizer_is_named(copied: Path) -> None:
    (copied / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match="does not load"):
        Tokens(copied)


def test_half_a_character_is_no_text(tokens: Tokens) -> None:
    with pytest.raises(UsageError, match=r"does not encode 'a\\ud800'.*position 1"):
        tokens.encode("a\ud800")
    assert tokens.encode("a") == [97]
