"""Stop strings in a growing completion, found across token borders.

Text is decoded a few tokens at a time. A character whose bytes are not all there yet decodes to the
replacement character; such a tail is looked at again with the next token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@dataclass(slots=True)
class StopSearch:
    """The search for one completion. Push its tokens one by one.

    Example:
        search = StopSearch(("\\n\\n",), tokens.decode)
        found = search.push(token_id)  # the text before the stop once there is one
    """

    stops: tuple[str, ...]
    decode: Callable[[Sequence[int]], str]
    _text: str = ""
    """Of all tokens before `_pending`."""
    _context: list[int] = field(default_factory=list[int])
    """The last settled tokens: some tokenizers decode a token differently after another."""
    _pending: list[int] = field(default_factory=list[int])
    """Tokens whose text may still change."""

    def __post_init__(self) -> None:
        if "" in self.stops:
            raise ValueError("a stop string must not be empty")

    def push(self, token_id: int) -> str | None:
        """Take the next token; the text before the earliest stop if there is one now."""
        self._pending.append(token_id)
        known = len(self.decode(self._context)) if self._context else 0
        fresh = self.decode(self._context + self._pending)[known:]
        settled = fresh.rstrip(UNFINISHED)
        longest = max(map(len, self.stops))
        start = max(0, len(self._text) - longest + 1)
        window = self._text[start:] + settled
        places = [place for stop in self.stops if (place := window.find(stop)) >= 0]
        if places:
            return self._text[:start] + window[: min(places)]
        if fresh and settled == fresh:
            self._text += fresh
            self._context, self._pending = self._pending, []
        return None
