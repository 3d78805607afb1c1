"""One trajectory prepared for reading: its words, its tokens, and what the verifier said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from practicum.observe.hostile import excerpt, one_line
from practicum.observe.store import Attempt
from practicum.observe.wording import fixed
from practicum.types import Message, Outcome, Trajectory

MOST_CHARACTERS = 4000
"""Of one message; what is left out is said."""
MOST_TOKENS = 600


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token."""

    text: str
    logprob: float
    version: int
    id: int

    @property
    def surprise(self) -> int:
        """0 for a token the policy was sure of, up to 3 for one it gave less than 10 %."""
        probability = math.exp(min(0.0, self.logprob))
        return sum(probability < limit for limit in (0.9, 0.5, 0.1))

    @property
    def note(self) -> str:
        """What hovering shows."""
        probability = 100 * math.exp(min(0.0, self.logprob))
        return (
            f"log-prob {fixed(self.logprob, 3)} ({fixed(probability, 1)} %), "
            f"weights version {self.version}, token {self.id}"
        )


@dataclass(frozen=True, slots=True)
class Card:
    """Everything that a reader needs to judge the attempt, already cut to a readable length."""

    trajectory_id: str
    domain: str
    step: int | None
    """The step that trained on it."""
    sample: int
    ending: str
    """`passed`, `failed`, a score in words, or the outcome of an attempt that was not scored."""
    grade: str
    """`good`, `bad` or `none`: how the ending looks."""
    reward: float | None
    num_sampled: int
    stop_reason: str
    prompt: tuple[tuple[str, str], ...]
    """(role, text) of each message."""
    turns: tuple[tuple[str, str], ...]
    """(role, text) of all that was said after the prompt."""
    tokens: tuple[Token, ...]
    num_tokens_left_out: int
    verifier: str
    evidence: str
    parts: tuple[tuple[str, float], ...]
    violations: tuple[tuple[str, float, str], ...]
    """(kind, penalty, evidence)."""
    failure: str
    """Kind, message and place, empty if nothing failed."""


def card(attempt: Attempt, vocabulary: Sequence[str] | None) -> Card:
    """Prepare one stored attempt. Without a vocabulary tokens show as their ids."""
    trajectory, verdict = attempt.trajectory, attempt.verdict
    prompt = attempt.task.prompt
    said = trajectory.messages
    turns = said[len(prompt) :] if said[: len(prompt)] == prompt else said
    tokens = sampled_tokens(trajectory, vocabulary)
    ending, grade = _ending(attempt)
    failure = trajectory.failure
    return Card(
        trajectory_id=trajectory.id,
        domain=attempt.task.domain,
        step=attempt.step,
        sample=trajectory.sample,
        ending=ending,
        grade=grade,
        reward=verdict.reward if verdict else None,
        num_sampled=len(tokens),
        stop_reason=str(trajectory.stop_reason).replace("_", " "),
        prompt=_texts(prompt),
        turns=_texts(turns),
        tokens=tuple(tokens[:MOST_TOKENS]),
        num_tokens_left_out=max(0, len(tokens) - MOST_TOKENS),
        verifier=f"{verdict.verifier.name} {verdict.verifier.version}" if verdict else "",
        evidence=excerpt(verdict.evidence, MOST_CHARACTERS) if verdict else "",
        parts=tuple(_items(verdict.parts)) if verdict else (),
        violations=tuple(
            (violation.kind, violation.penalty, excerpt(violation.evidence, MOST_CHARACTERS))
            for violation in (verdict.violations if verdict else ())
        ),
        failure=(
            f"{failure.kind}: {excerpt(failure.message, MOST_CHARACTERS)}"
            + (f" (in {failure.where})" if failure.where else "")
            if failure
            else ""
        ),
    )


def sampled_tokens(trajectory: Trajectory, vocabulary: Sequence[str] | None) -> list[Token]:
    """The tokens that the policy sampled, in order, over all segments."""
    return [
        Token(_piece(token_id, vocabulary), logprob, version, token_id)
        for segment in trajectory.segments
        for token_id, mask, logprob, version in zip(
            segment.token_ids, segment.loss_mask, segment.logprobs, segment.versions
        )
        if mask
    ]


def _piece(token_id: int, vocabulary: Sequence[str] | None) -> str:
    if vocabulary is None or not 0 <= token_id < len(vocabulary):
        return f"#{token_id}"
    piece = one_line(vocabulary[token_id], 80)
    return piece if piece.strip() else piece.replace(" ", "␣")  # a lone space would be nothing


def _ending(attempt: Attempt) -> tuple[str, str]:
    outcome, verdict = attempt.trajectory.outcome, attempt.verdict
    if outcome is not Outcome.SCORED or verdict is None:
        return str(outcome).replace("_", " "), "bad" if outcome.counts else "none"
    if verdict.scale == "unit" and verdict.score in (0.0, 1.0):
        return ("passed", "good") if verdict.score else ("failed", "bad")
    return f"score {fixed(verdict.score)}", "good" if verdict.score >= 0.5 else "bad"


def _texts(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((m.role, excerpt(m.content, MOST_CHARACTERS)) for m in messages)


def _items(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items())
