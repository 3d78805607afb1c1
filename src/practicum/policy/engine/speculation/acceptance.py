"""How often guesses come true, by proposer, confidence and request.

Coupled sampling makes this free to learn: a guess comes true exactly when it equals the token that
was sampled, whether or not it was ever run. So guesses are scored against plain decoding too, and
a proposer that is not used keeps its record.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from practicum.policy.engine.speculation.proposal import Guess

NUM_LEVELS = 16
PRIOR = 8.0
"""Guesses' worth of belief in the confidence itself, before any was scored."""
MEMORY = 512.0
"""Guesses that a level of confidence remembers."""
REQUEST_PRIOR = 16.0
REQUEST_MEMORY = 64.0
"""Long enough that the luck of a few guesses is not taken for a trait of the request: what is then
chosen would be what was lucky."""
MOST_CERTAIN = 0.995


@dataclass(slots=True)
class _Record:
    """Right guesses and expected right guesses, both fading."""

    right: float = 0.0
    expected: float = 0.0

    def add(self, right: bool, expected: float, memory: float) -> None:
        fade = 1.0 - 1.0 / memory
        self.right = self.right * fade + right
        self.expected = self.expected * fade + expected


@dataclass(slots=True)
class Acceptance:
    """Calibrates confidences to probabilities."""

    _levels: dict[tuple[str, int], _Record] = field(default_factory=dict[tuple[str, int], _Record])
    _requests: dict[Hashable, _Record] = field(default_factory=dict[Hashable, _Record])

    def probability(self, proposer: str, request_id: Hashable, confidence: float) -> float:
        """That a guess comes true, if those before it did."""
        request = self._requests.get(request_id)
        likely = self._calibrated(proposer, confidence)
        if request is not None:
            likely *= (request.right + REQUEST_PRIOR) / (request.expected + REQUEST_PRIOR)
        return min(likely, MOST_CERTAIN)

    def score(
        self, proposer: str, request_id: Hashable, guesses: Sequence[Guess], tokens: Sequence[int]
    ) -> None:
        """Compare guesses with the tokens sampled in their places, up to the first wrong one."""
        request = self._requests.setdefault(request_id, _Record())
        for guess, token in zip(guesses, tokens):
            right = guess.token == token
            request.add(right, self._calibrated(proposer, guess.confidence), REQUEST_MEMORY)
            level = self._levels.setdefault((proposer, _level(guess.confidence)), _Record())
            level.add(right, 1.0, MEMORY)
            if not right:
                break

    def forget(self, request_id: Hashable) -> None:
        self._requests.pop(request_id, None)

    def _calibrated(self, proposer: str, confidence: float) -> float:
        level = self._levels.get((proposer, _level(confidence))) or _Record()
        return (level.right + PRIOR * confidence) / (level.expected + PRIOR)


def _level(confidence: float) -> int:
    return min(int(confidence * NUM_LEVELS), NUM_LEVELS - 1)
