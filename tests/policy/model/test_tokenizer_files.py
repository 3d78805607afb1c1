"""Tokenizers of many makes, beside AutoTokenizer on the same folder."""

import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors
from transformers import (
    AutoTokenizer,
    GemmaTokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    Qwen2Tokenizer,
)

from practicum.errors import PracticumError, UsageError
from practicum.policy.model.hub import fetch_model
from practicum.policy.model.tokenizer_files import read_tokenizer
from practicum.policy.model.tokens import Tokens
from practicum.types import Message

from .tokenizer_folders import BOS, CONTROL, EOS, MAKES, TEXTS, between, byte_level, pieces, write

PARTS = st.sampled_from(
    [*CONTROL, *TEXTS, " ", "\n", "the", "50 €", "<add>", "[mask]", " , ", "日"]
)
SOME_TEXT = st.lists(PARTS | st.text(max_size=8), max_size=6).map("".join)

FIXED = [
    *("", " ", "  ", "\n", *TEXTS, *CONTROL, *(f"a {one} b{one}c" for one in CONTROL)),
    *(
        "<add>",
        "x<add>y",
        " <add> ",
        "x [mask] y",
        "Mr <ADD> ..",
        "they 're , not ! 'm",
        "日本語 🙂",
    ),
]


def theirs_of(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def assert_same(folder: Path, texts: Iterable[str] = FIXED) -> None:
    """Everything that `Tokens` gives is what AutoTokenizer gives."""
    theirs, ours = theirs_of(folder), Tokens(folder)
    loaded = read_tokenizer(folder)
    assert loaded.rules.get_vocab() == theirs.get_vocab()
    assert loaded.roles == theirs.special_tokens_map
    added = loaded.rules.get_added_tokens_decoder()
    assert {i: repr(one) for i, one in added.items()} == {
        i: repr(one) for i, one in theirs.added_tokens_decoder.items()
    }
    assert ours.eos_id == theirs.eos_token_id
    assert ours.largest_id == max(theirs.get_vocab().values())
    first = theirs("")["input_ids"][:1]
    start = first if first == [theirs.bos_token_id] else []
    numbers = random.Random(0)
    for text in texts:
        plain, acting = (
            theirs.encode(text, add_special_tokens=False, split_special_tokens=split)
            for split in (True, False)
        )
        assert ours.encode(text) == plain, text
        assert ours.render([Message("text", text)]) == [*start, *acting], text
        shuffled = numbers.choices(range(ours.largest_id + 1), k=20)
        for ids in (plain, acting, acting[1:], shuffled):
            assert ours.decode(ids) == theirs.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize(("start", "end"), [(False, False), (True, False), (True, True)])
def test_every_make_of_tokenizer_is_read_as_transformers_reads_it(
    tmp_path: Path, make: str, start: bool, end: bool
) -> None:
    tokenizer = MAKES[make]()
    if start:
        tokenizer.post_processor = between(tokenizer, start=start, end=end)
    assert_same(write(tmp_path, tokenizer))


@pytest.mark.parametrize("make", MAKES)
def test_any_text_is_read_as_transformers_reads_it(
    tmp_path_factory: pytest.TempPathFactory, make: str
) -> None:
    folder = write(tmp_path_factory.mktemp("folder"), MAKES[make]())
    theirs, ours = theirs_of(folder), Tokens(folder)

    @settings(deadline=None, max_examples=60)
    @given(text=SOME_TEXT)
    def holds(text: str) -> None:
        plain, acting = (
            theirs.encode(text, add_special_tokens=False, split_special_tokens=split)
            for split in (True, False)
        )
        assert ours.encode(text) == plain
        assert ours.render([Message("text", text)]) == acting
        assert ours.decode(acting) == theirs.decode(acting, skip_special_tokens=True)

    holds()


def test_a_start_token_behind_another_post_processor_is_found(tmp_path: Path) -> None:
    """As in Llama 3."""
    tokenizer = byte_level()
    both = [processors.ByteLevel(trim_offsets=False), between(tokenizer, start=True, end=False)]
    tokenizer.post_processor = processors.Sequence(both)
    assert_same(write(tmp_path, tokenizer))
    assert Tokens(tmp_path).render([Message("text", "a")])[0] == tokenizer.token_to_id(BOS)


FLAGS = st.fixed_dictionaries(
    {
        "single_word": st.booleans(),
        "lstrip": st.booleans(),
        "rstrip": st.booleans(),
        "normalized": st.booleans(),
        "special": st.booleans(),
    }
)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    make=st.sampled_from(sorted(MAKES)),
    flags=st.lists(FLAGS, min_size=2, max_size=2),
    declared=st.booleans(),
    role=st.sampled_from(["pad_token", "mask_token", "sep_token", "thinking_token", None]),
)
def test_added_tokens_have_the_flags_that_transformers_gives_them(
    tmp_path: Path, make: str, flags: list[dict[str, Any]], declared: bool, role: str | None
) -> None:
    tokenizer = MAKES[make]()
    first, second = flags
    tokenizer.add_tokens([AddedToken("<add>", **first)])
    tokenizer.add_tokens([AddedToken("[mask]", **first)])
    settings: dict[str, Any] = {role: "<add>"} if role else {}
    if declared:
        added = {
            i: {"content": one.content, "special": one.special, "lstrip": one.lstrip}
            for i, one in tokenizer.get_added_tokens_decoder().items()
        }
        added[tokenizer.token_to_id("[mask]")] = {"content": "[mask]", **second}
        added[tokenizer.get_vocab_size()] = {"content": "<late>", **second}
        settings["added_tokens_decoder"] = added
    assert_same(write(tmp_path, tokenizer, **settings), [*FIXED, "x<late>y"])


def as_added(token: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", "content": token, **flags}


NONE_GIVEN = {"bos_token": None, "eos_token": None, "unk_token": None}


@pytest.mark.parametrize(
    "changes",
    [
        NONE_GIVEN,
        {"eos_token": as_added(EOS, special=True, lstrip=True)},
        {"eos_token": "<new end>", "pad_token": "<new pad>"},
        {"eos_token": "the"},  # a token of the model, now a control token
        {"extra_special_tokens": ["<add>", "[mask]"]},
        {"extra_special_tokens": ["<add>", "the", EOS, "<add>"]},
        {"extra_special_tokens": {"image_token": "<add>", "fox": "fox"}},
        {"additional_special_tokens": ["<add>", "<|im_end|>"]},
        {"additional_special_tokens": ["<add>"], "extra_special_tokens": ["[mask]"]},
        {"additional_special_tokens": ["<add>"], "extra_special_tokens": []},
        {"image_token": "<add>", "no_such_token": None, "add_bos_token": True},
        {"add_bos_token": True, "add_eos_token": True, "add_prefix_space": True},
        {"clean_up_tokenization_spaces": True},
        {"split_special_tokens": True},
        {"model_max_length": 3, "truncation_side": "left", "padding_side": "left"},
        {"tokenizer_class": "TokenizersBackend"},
        {"tokenizer_class": None},
        {"tokenizer_class": "NoSuchTokenizerFast"},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", ["byte level", "pieces", "word pieces"])
def test_settings_mean_what_transformers_takes_them_for(
    tmp_path: Path, make: str, changes: dict[str, Any]
) -> None:
    assert_same(write(tmp_path, MAKES[make](), **changes))


@pytest.mark.parametrize(
    "named",
    [
        {"eos_token": "<|im_end|>", "pad_token": "<add>"},
        {"eos_token": {"content": "<|im_end|>", "lstrip": True, "normalized": False}},
        {"additional_special_tokens": ["<add>"]},
        {"extra_special_tokens": [{"content": "<add>"}, "[mask]"]},
    ],
    ids=str,
)
def test_older_folders_name_tokens_in_files_of_their_own(
    tmp_path: Path, named: dict[str, Any]
) -> None:
    folder = write(tmp_path, byte_level())
    (folder / "special_tokens_map.json").write_text(json.dumps(named))
    size = byte_level().get_vocab_size()
    (folder / "added_tokens.json").write_text(json.dumps({"[mask]": size, "<late>": size + 1}))
    assert_same(folder, [*FIXED, "x<late>y"])


def test_newer_settings_make_the_older_files_obsolete(tmp_path: Path) -> None:
    tokenizer = byte_level()
    added = {i: {"content": t.content} for i, t in tokenizer.get_added_tokens_decoder().items()}
    folder = write(tmp_path, tokenizer, added_tokens_decoder=added)
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "added_tokens.json").write_text(json.dumps({"<late>": 999}))
    assert_same(folder)


def test_truncation_and_padding_of_training_are_switched_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8, pad_id=1, pad_token=EOS)
    assert_same(write(tmp_path, tokenizer))
    assert len(Tokens(tmp_path).encode("many words, many tokens")) > 8


def test_a_folder_with_nothing_but_the_rules_has_a_tokenizer(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level())
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").unlink()
    tokens = Tokens(folder)
    assert tokens.decode(tokens.encode("the café")) == "the café"
    assert (tokens.eos_id, tokens.eos_ids) == (
        None,
        {CONTROL.index("</s>"), CONTROL.index("<|im_end|>")},
    )


def saved(kind: Any, tokenizer: Tokenizer, folder: Path, model_type: str) -> Path:
    """As transformers writes a tokenizer of one of its classes."""
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    roles = {"bos_token": BOS, "eos_token": EOS, "unk_token": "<unk>", "pad_token": EOS}
    kind(vocab=model["vocab"], merges=merges, **roles).save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


@pytest.mark.parametrize(
    ("kind", "make", "model_type"),
    [
        (GPT2Tokenizer, "byte level", "llama"),
        (Qwen2Tokenizer, "byte level", "qwen2"),
        (Qwen2Tokenizer, "byte level", "qwen3"),
        (LlamaTokenizer, "pieces", "llama"),
        (LlamaTokenizer, "pieces", "mistral"),
        (GemmaTokenizer, "pieces", "gemma2"),
        (GemmaTokenizer, "pieces", "gemma3_text"),
    ],
)
def test_what_transformers_saved_is_read_as_transformers_reads_it(
    tmp_path: Path, kind: Any, make: str, model_type: str
) -> None:
    assert_same(saved(kind, MAKES[make](), tmp_path, model_type))


def test_the_rules_of_the_folder_hold_whatever_class_it_names(tmp_path: Path) -> None:
    """SmolLM2's own folder names GPT-2's class, whose rules would leave digits together."""
    folder = write(tmp_path, byte_level(digits=True), tokenizer_class="GPT2Tokenizer")
    tokens = Tokens(folder)
    assert [tokens.decode([i]) for i in tokens.encode("x12345")] == list("x12345")
    assert len(theirs_of(folder).encode("12345", add_special_tokens=False)) < 5


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("tokenizer.json", "{", "does not load"),
        ("tokenizer.json", "{}", "does not load"),
        ("tokenizer_config.json", "[1]", "should hold a JSON object"),
        ("tokenizer_config.json", '{"eos_token": 3}', "`eos_token` in .* not 3"),
        ("tokenizer_config.json", '{"eos_token": {"content": 3}}', "`eos_token` in"),
        (
            "tokenizer_config.json",
            '{"extra_special_tokens": "abc"}',
            "`extra_special_tokens` .*list",
        ),
        ("tokenizer_config.json", '{"additional_special_tokens": [1]}', "`additional_special_to"),
        ("tokenizer_config.json", '{"extra_special_tokens": {"image": 1}}', "`image` in"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}', "does not load"),
        ("special_tokens_map.json", "nonsense", "not valid JSON"),
    ],
)
def test_a_folder_that_does_not_load_is_named(
    tmp_path: Path, name: str, content: str, named: str
) -> None:
    folder = write(tmp_path, byte_level())
    (folder / name).write_text(content)
    with pytest.raises(UsageError, match=named) as refused:
        Tokens(folder)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<none>", "type_id": 0}}],
                "pair": [{"SpecialToken": {"id": "<none>", "type_id": 0}}],
                "special_tokens": {},
            }
        },
        {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}, "added_tokens": []},
    ],
)
def test_rules_that_make_the_library_panic_are_the_folders_fault(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = write(tmp_path, byte_level())
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UsageError) as refused:
        Tokens(folder).encode("some text")
    assert str(folder) in str(refused.value)


def test_a_folder_without_rules_is_converted_by_transformers(tmp_path: Path) -> None:
    tokenizer = byte_level()
    folder = saved(Qwen2Tokenizer, tokenizer, tmp_path, "qwen2")
    before = Tokens(folder).encode(" ".join(TEXTS))
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (folder / "tokenizer.json").unlink()
    tokens = Tokens(folder)
    assert tokens.encode(" ".join(TEXTS)) == before
    assert tokens.eos_id == tokenizer.token_to_id(EOS)


def test_rules_and_templates_need_no_transformers(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from practicum.policy.model.tokens import Tokens; "
        "from practicum.types import Message; tokens = Tokens(Path(sys.argv[1])); "
        "tokens.render([Message('user', 'hi')]); tokens.token_bytes(5); "
        "assert not {'transformers', 'torch._dynamo'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)


@pytest.mark.slow
def test_a_real_tokenizer_is_read_as_transformers_reads_it() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_HUB_OFFLINE", raising=False)  # the test run is offline otherwise
        try:
            folder = fetch_model("smollm2-135m")
        except PracticumError as error:
            pytest.skip(f"SmolLM2 cannot be fetched here: {error}")
    assert_same(folder, [*FIXED, "<|im_start|>user\nhi<|im_end|>\n", "x <|endoftext|> y"])
    theirs, ours = theirs_of(folder), Tokens(folder)
    chat = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Grüße! 12345"}]
    for messages in (chat, chat[1:]):
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert ours.render_chat(messages) == expected


def test_pieces_written_by_a_normalizer_stay_as_the_folder_has_them(tmp_path: Path) -> None:
    folder = write(tmp_path, pieces(by_normalizer=True), tokenizer_class="LlamaTokenizer")
    tokens = Tokens(folder)
    assert tokens.decode(tokens.encode("the fox")) == "the fox"
