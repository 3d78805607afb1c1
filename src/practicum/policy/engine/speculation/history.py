"""History: a completion resembles its siblings, and what earlier epochs said to the same prompt.

One index per prompt. Siblings under way are in it as they grow, ended ones until there are too many
of them or too much altogether; then the oldest go, and the prompts not seen for longest. What older
weights said counts for less.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from practicum.errors import UsageError
from practicum.policy.engine.speculation.proposal import Guess, View
from practicum.policy.engine.speculation.suffixes import LONGEST_MATCH, Stream, SuffixIndex
from practicum.policy.engine.speculation.votes import guesses

MAX_ENDED = 64
"""Most ended completions kept for one prompt; the older half goes when there are more."""


@dataclass(slots=True)
class _Told:
    """All that was said after one prompt."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    ended: list[Stream] = field(default_factory=list[Stream])
    under_way: dict[Hashable, tuple[Stream, int]] = field(
        default_factory=dict[Hashable, "tuple[Stream, int]"]
    )
    """Stream of each request, and how many of its sampled tokens are in it."""

    def follow(self, view: View) -> Stream:
        """Bring the view's stream up to date."""
        stream, num_tokens = self.under_way.get(view.request_id) or (
            Stream(view.version),
            0,
        )
        if not stream.tokens:
            self.index.extend(stream, view.prompt[-LONGEST_MATCH:])
        self.index.extend(stream, view.tokens[num_tokens:])
        stream.version = view.version
        self.under_way[view.request_id] = (stream, len(view.tokens))
        return stream

    def end(self, view: View) -> None:
        self.ended.append(self.follow(view))
        del self.under_way[view.request_id]
        if len(self.ended) > MAX_ENDED:
            self.keep_newest(MAX_ENDED // 2)

    def keep_newest(self, num_ended: int) -> None:
        """Index anew what is under way and so many of the ended streams."""
        self.ended = self.ended[len(self.ended) - num_ended :]
        self.index = SuffixIndex()
        for stream in [*self.ended, *(stream for stream, _ in self.under_way.values())]:
            tokens, stream.tokens = stream.tokens, []
            self.index.extend(stream, tokens)


class History:
    """Satisfies `Proposer`. Ended completions are dropped while there are over `max_tokens`."""

    name = "history"

    def __init__(self, max_tokens: int = 1 << 18) -> None:
        if max_tokens < 1:
            raise UsageError(f"a history of {max_tokens} tokens holds nothing; use at least 1")
        self._max_tokens = max_tokens
        self._told: OrderedDict[Hashable, _Told] = OrderedDict()

    def propose(self, views: Sequence[View], max_guesses: int) -> list[list[Guess]]:
        # All siblings first: what one has just said can be the next token of another.
        told = [self._of(view) for view in views]
        for mine, view in zip(told, views, strict=True):
            mine.follow(view)
        result: list[list[Guess]] = []
        for mine, view in zip(told, views, strict=True):
            matches = mine.index.matches(view.context(LONGEST_MATCH))
            result.append(guesses(matches, max_guesses, view.uniforms, view.version))
        return result

    def finished(self, view: View) -> None:
        self._of(view).end(view)
        self._make_room()

    @property
    def num_tokens(self) -> int:
        """Tokens held now."""
        return sum(told.index.num_tokens for told in self._told.values())

    def _of(self, view: View) -> _Told:
        told = self._told.setdefault(view.key, _Told())
        self._told.move_to_end(view.key)
        return told

    def _make_room(self) -> None:
        excess = self.num_tokens - self._max_tokens
        for key, told in list(self._told.items()):
            if excess <= 0:
                return
            excess -= told.index.num_tokens
            if told.under_way:  # what is still needed stays, however much it is
                told.keep_newest(0)
                excess += told.index.num_tokens
            else:
                del self._told[key]
