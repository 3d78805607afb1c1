"""Prompt lookup: a completion repeats what its own prompt and itself said before.

Answers that quote, edit or loop. The index of a prompt is shared by all requests that have it, and
lives as long as one of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from practicum.policy.engine.speculation.proposal import Guess, View
from practicum.policy.engine.speculation.suffixes import LONGEST_MATCH, Stream, SuffixIndex
from practicum.policy.engine.speculation.votes import guesses


@dataclass(slots=True)
class _Prompt:
    index: SuffixIndex
    num_requests: int = 0


@dataclass(slots=True)
class _Own:
    """What one request has sampled, after the end of its prompt."""

    prompt: _Prompt
    stream: Stream
    """Begins with the end of the prompt, which is not indexed a second time."""
    index: SuffixIndex = field(default_factory=SuffixIndex)
    num_tokens: int = 0
    """Sampled tokens in the stream."""


class PromptLookup:
    """Satisfies `Proposer`. Every token is indexed once; a proposal's cost does not grow."""

    name = "prompt_lookup"

    def __init__(self) -> None:
        self._prompts: dict[Hashable, _Prompt] = {}
        self._own: dict[Hashable, _Own] = {}

    def propose(self, views: Sequence[View], max_guesses: int) -> list[list[Guess]]:
        return [self._propose(view, max_guesses) for view in views]

    def finished(self, view: View) -> None:
        own = self._own.pop(view.request_id, None)
        if own is None:
            return
        own.prompt.num_requests -= 1
        if own.prompt.num_requests == 0:
            del self._prompts[view.key]

    @property
    def num_tokens(self) -> int:
        """Tokens indexed now."""
        indices = [*self._prompts.values(), *self._own.values()]
        return sum(each.index.num_tokens for each in indices)

    def _propose(self, view: View, max_guesses: int) -> list[Guess]:
        own = self._own.get(view.request_id) or self._begin(view)
        own.index.extend(own.stream, view.tokens[own.num_tokens :])
        own.num_tokens = len(view.tokens)
        context = view.context(LONGEST_MATCH)
        matches = [*own.prompt.index.matches(context), *own.index.matches(context)]
        return guesses(matches, max_guesses, view.uniforms, view.version)

    def _begin(self, view: View) -> _Own:
        prompt = self._prompts.get(view.key)
        if prompt is None:
            prompt = self._prompts[view.key] = _Prompt(SuffixIndex())
            prompt.index.extend(Stream(view.version), view.prompt)
        prompt.num_requests += 1
        past = Stream(view.version, list(view.prompt[-LONGEST_MATCH:]))
        own = self._own[view.request_id] = _Own(prompt, past)
        return own
