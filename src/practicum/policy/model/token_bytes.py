"""The bytes that each token stands for; part of a character, where a token is that.

Three notations are in use: a printable character for every byte (byte-level BPE), `<0xE2>` beside
text with a mark for blanks (SentencePiece), and plain text (tokens added later).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokenizers import Tokenizer

NUM_BYTES = 256
BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Of one tokenizer.

    Example:
        TokenBytes(tokenizer).of(token_id)  # b" the"
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.get_vocab()
        symbols = byte_symbols()
        added = tokenizer.get_added_tokens_decoder()
        self._names = {token_id: name for name, token_id in vocabulary.items()}
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        self._bytes: Mapping[str, int] | None = None
        if all(symbol in vocabulary for symbol in symbols):
            self._bytes = {symbol: byte for byte, symbol in enumerate(symbols)}

    def of(self, token_id: int) -> bytes:
        """Bytes of one token; of a control token those of its name; none of an unknown one."""
        if token_id in self._added:
            return self._added[token_id]
        name = self._names.get(token_id, "")
        if self._bytes is not None:
            return bytes(self._bytes[symbol] for symbol in name)
        if byte := _BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        return name.replace(BLANK, " ").encode()


def byte_symbols() -> list[str]:
    """The printable character that byte-level tokenizers use for each byte, by byte.

    Printable Latin-1 bytes stand for themselves; the others are numbered upwards from 256.
    """
    symbols: list[str] = []
    num_moved = 0
    for byte in range(NUM_BYTES):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(256 + num_moved))
            num_moved += 1
    return symbols
