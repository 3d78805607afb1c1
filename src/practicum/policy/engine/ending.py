"""When a completion ends, and its text on the way there.

A completion ends at the first of: an end of text of the model or a token that the request names, a
stop string, the last position of the context, the last token that was asked for. The token that
ends it stays in the completion; its text does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from practicum.policy.engine.detokenise import Detokeniser
from practicum.sampling import Sampling
from practicum.types import StopReason


@dataclass(slots=True)
class Ending:
    """Of one completion. Push its tokens until there is a `reason`.

    Example:
        ending = Ending(sampling, tokens.eos_ids, tokens.decode, room=100)
        while ending.reason is None:
            show(ending.push(next_token()))
    """

    sampling: Sampling
    eos_ids: Set[int]
    decode: Callable[[Sequence[int]], str]
    room: int
    """Tokens that the context can hold after the prompt."""
    streaming: bool = True
    """Whether anyone wants text before the end; finding stop strings needs it anyway."""
    reason: StopReason | None = None
    _token_ids: list[int] = field(default_factory=list[int])
    """All that have text."""
    _num_tokens: int = 0
    _detokeniser: Detokeniser | None = None
    _given: list[str] = field(default_factory=list[str])
    _held: str = ""
    """Certain text that may turn out to begin a stop string."""

    def __post_init__(self) -> None:
        assert "" not in self.sampling.stop, "an empty stop string is refused before"
        if self.streaming or self.sampling.stop:
            self._detokeniser = Detokeniser(self.decode)

    @property
    def text(self) -> str:
        """All text that was returned so far; once there is a reason, the completion's."""
        return "".join(self._given)

    def push(self, token_id: int) -> str:
        """Take the next token; text that is certain now, never a part of a stop string."""
        assert self.reason is None, "a completion that has ended takes no more tokens"
        self._num_tokens += 1
        ends = token_id in self.eos_ids and not self.sampling.ignore_eos
        if ends or token_id in self.sampling.stop_token_ids:
            return self._end(StopReason.EOS)
        self._token_ids.append(token_id)
        given = self._take(self._detokeniser.push(token_id)) if self._detokeniser else ""
        if self.reason is None and self._num_tokens >= self.room:
            given += self._end(StopReason.CONTEXT_END)
        if self.reason is None and self._num_tokens >= self.sampling.max_new_tokens:
            given += self._end(StopReason.MAX_TOKENS)
        return given

    def abort(self) -> str:
        """End here, because nobody wants the rest; the text that was held back."""
        return self._end(StopReason.ABORTED)

    def _take(self, piece: str) -> str:
        """Give what no stop string can reach any more; ends at the first stop string."""
        text = self._held + piece
        places = [place for stop in self.sampling.stop if (place := text.find(stop)) >= 0]
        if places:
            self.reason = StopReason.STOP_STRING
            self._held = ""
            return self._give(text[: min(places)])
        num_held = _overlap(text, self.sampling.stop)
        self._held = text[len(text) - num_held :]
        return self._give(text[: len(text) - num_held])

    def _end(self, reason: StopReason) -> str:
        self.reason = reason
        if self._detokeniser is None:
            return self._give(self.decode(self._token_ids))
        return self._give(self._held + self._detokeniser.flush())

    def _give(self, text: str) -> str:
        if text:
            self._given.append(text)
        return text


def _overlap(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string.

    Example:
        _overlap("one EN", ["END", "\\n\\n"]) == 2
    """
    longest = min(len(text), max(map(len, stops), default=1) - 1)
    lengths = range(longest, 0, -1)
    return next((n for n in lengths if any(s.startswith(text[-n:]) for s in stops)), 0)
