"""A call under way: what was asked, where its randomness, its language and its text are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from practicum.policy.engine.constraint import Matcher
from practicum.policy.engine.draw import Draw, TopLogprobs
from practicum.policy.engine.ending import Ending
from practicum.policy.engine.penalties import Seen
from practicum.policy.engine.request import Request
from practicum.policy.engine.uniforms import Stream
from practicum.sampling import Completion, Delta
from practicum.types import StopReason, WeightVersion

Listener = Callable[[Delta], None]


@dataclass(slots=True, eq=False)
class Live:
    """One request and all that the engine knows of it besides its pages."""

    request: Request
    ending: Ending
    uniforms: Stream
    seen: Seen | None
    matcher: Matcher | None
    listener: Listener
    """Is told what was added, on the engine's thread."""
    top_logprobs: list[TopLogprobs] = field(default_factory=list[TopLogprobs])
    abandoned: bool = False
    """Nobody waits for it any more."""
    failure: Exception | None = None
    """Why it could not go on, where that is its own affair; its caller sees it."""
    _text: str = ""
    """Not told yet."""
    _given: int = 0
    """Tokens that the listener knows of."""

    @property
    def order(self) -> tuple[object, ...]:
        """By this are calls sorted that enter together: their order of arrival is chance."""
        sampling = self.request.sampling
        return (self.request.prompt_ids, sampling.seed, sampling.temperature, repr(sampling))

    def draws(self, rows: list[int], drafts: tuple[int, ...]) -> list[Draw]:
        """One draw for the next token and one for each draft, as if all drafts were right.

        Fewer where a draft already is impossible: its own draw says so.
        """
        number = len(self.request.token_ids)
        sampling = self.request.sampling
        if self.matcher is None:
            allowed = [None] * (len(drafts) + 1)
        else:
            allowed = list(self.matcher.allowed_along(drafts))
        draws: list[Draw] = []
        for place, mask in enumerate(allowed):
            seen = self.seen
            if seen is not None and place:
                seen = seen.after(drafts[:place])
            draws.append(Draw(rows[place], self.uniforms[number + place], sampling, seen, mask))
        return draws

    def push(
        self,
        token_id: int,
        logprob: float,
        version: WeightVersion,
        log_kept_mass: float,
        top_logprobs: TopLogprobs,
    ) -> None:
        """Take a sampled token; afterwards `request.stop_reason` says whether it was the last."""
        self.request.push(token_id, logprob, version, log_kept_mass)
        if self.request.sampling.top_logprobs:
            self.top_logprobs.append(top_logprobs)
        if self.seen is not None:
            self.seen.push(token_id)
        if self.matcher is not None:
            self.matcher.advance(token_id)
        self._text += self.ending.push(token_id)
        self.request.stop_reason = self.ending.reason

    def abort(self) -> None:
        """End it without another token."""
        if self.ending.reason is None:
            self._text += self.ending.abort()
            self.request.stop_reason = StopReason.ABORTED

    def fail(self, failure: Exception) -> None:
        """End it, because it cannot go on."""
        self.failure = failure
        self.abort()

    def completion(self) -> Completion:
        """All of it; once it has ended."""
        request = self.request
        assert request.stop_reason is not None, "it is still under way"
        return Completion(
            token_ids=tuple(request.token_ids),
            logprobs=tuple(request.logprobs),
            versions=tuple(request.versions),
            text=self.ending.text,
            stop_reason=request.stop_reason,
            log_kept_mass=tuple(request.log_kept_mass) if any(request.log_kept_mass) else (),
            top_logprobs=tuple(self.top_logprobs),
            reused_tokens=request.reused_tokens,
        )

    def tell(self) -> None:
        """Let the listener know what is new."""
        request, since = self.request, self._given
        if not (self.ending.streaming or request.stop_reason is not None):
            return
        text, self._text = self._text, ""
        self._given = len(request.token_ids)
        self.listener(
            Delta(
                token_ids=tuple(request.token_ids[since:]),
                text=text,
                logprobs=tuple(request.logprobs[since:]),
                top_logprobs=tuple(self.top_logprobs[since:]),
                stop_reason=request.stop_reason,
                reused_tokens=request.reused_tokens,
            )
        )
