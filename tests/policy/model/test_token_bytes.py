"""The bytes of tokens, joined, are the text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer

from practicum.policy.model.tiny import write_tiny
from practicum.policy.model.token_bytes import TokenBytes, byte_symbols


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def sentence_pieces() -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "the"]
    model = BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


@given(text=st.text())
def test_bytes_of_tokens_are_the_bytes_of_the_text(byte_level: Any, text: str):
    of = TokenBytes(byte_level.backend_tokenizer).of
    assert b"".join(map(of, byte_level.encode(text))) == text.encode()


def test_a_token_that_is_part_of_a_character_is_its_bytes(byte_level: Any):
    of = TokenBytes(byte_level.backend_tokenizer).of
    assert [of(i) for i in byte_level.encode("é")] == [b"\xc3", b"\xa9"]


def test_control_tokens_are_their_names_and_unknown_ones_nothing(byte_level: Any):
    of = TokenBytes(byte_level.backend_tokenizer).of
    assert of(byte_level.eos_token_id) == b"<|im_end|>"
    assert of(10**6) == b""


def test_sentence_pieces_write_spaces_and_bytes_in_their_own_way():
    tokenizer = sentence_pieces()
    of = TokenBytes(tokenizer).of
    names = ["▁the", "the", "<0xE2>", "▁"]
    assert [of(tokenizer.token_to_id(name)) for name in names] == [
        b" the",
        b"the",
        b"\xe2",
        b" ",
    ]


def test_every_byte_has_a_symbol_of_its_own():
    assert len(set(byte_symbols())) == 256
