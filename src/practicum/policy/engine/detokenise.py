"""Text of a growing completion: each piece as soon as it is certain, never a broken character.

The one thing to know: a token's text can depend on the tokens beside it. A character's bytes may be
spread over several tokens, and decode to replacement characters until all are there; some
tokenizers drop the first space of a text. So tokens are decoded together with a few before them,
and a tail of replacement characters waits for the next token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

UNFINISHED = "\N{REPLACEMENT CHARACTER}"

LONGEST_UNFINISHED = 3
"""A character has at most four bytes, so at most three are there before it is complete."""

LONGEST_WINDOW = 16
"""Tokens decoded together, unless they are bytes that make no text."""


@dataclass(slots=True)
class Detokeniser:
    """Of one completion. All pieces and the flush together are the text of all tokens.

    Example:
        pieces = [detokeniser.push(token_id) for token_id in token_ids] + [detokeniser.flush()]
        "".join(pieces) == tokens.decode(token_ids)
    """

    decode: Callable[[Sequence[int]], str]
    _window: list[int] = field(default_factory=list[int])
    """The last tokens, from the start of a character on."""
    _text: str = ""
    """Of the window."""
    _given: int = 0
    """Characters of the window's text that were returned already."""
    _boundary: int = 0
    """Index in the window after which a character starts."""

    def push(self, token_id: int) -> str:
        """Take the next token; the text that is certain now and was not before."""
        text = self.decode([*self._window, token_id])
        if text == self._text and self._window and not self.decode([token_id]):
            return ""  # a control token: it has no text, and would only lengthen the window
        self._window.append(token_id)
        self._text = text
        finished = not text.endswith(UNFINISHED)
        certain = self._given
        if finished:
            certain = len(text)
        elif len(self._window) - self._boundary > LONGEST_UNFINISHED:  # not one character's bytes
            certain = max(certain, len(text) - LONGEST_UNFINISHED)
        piece = text[self._given : certain]
        self._given = certain
        if finished:
            if len(self._window) >= LONGEST_WINDOW:
                self._forget(self._boundary)
            self._boundary = len(self._window)
        elif len(self._window) >= 2 * LONGEST_WINDOW:
            self._forget_bytes()
        return piece

    def flush(self) -> str:
        """The rest at the end of the completion, with what stays unfinished."""
        piece = self._text[self._given :]
        self._given = len(self._text)
        return piece

    def _forget(self, count: int) -> None:
        """Drop the first tokens of the window, all of whose text was given."""
        ahead = len(self._text) - self._given
        self._window = self._window[count:]
        self._text = self.decode(self._window)
        self._given = len(self._text) - ahead
        self._boundary = 0

    def _forget_bytes(self) -> None:
        """Drop what is certain of many bytes that make no text.

        The last characters were not given yet, and only they can change. So a cut before them holds
        for good if both sides of it decode to the text of both together.
        """
        for cut in range(len(self._window) - 1, 0, -1):
            before, after = self.decode(self._window[:cut]), self.decode(self._window[cut:])
            if before + after == self._text and len(before) <= self._given:
                self._forget(cut)
                return
