"""A draft model: a cheaper model guesses with the very numbers that the target will draw by.

It draws from its own logits with the target's next uniform, so that where the two distributions are
equal the tokens are equal, at any temperature. Its surest guesses are those whose uniform falls far
inside the token's interval: there the target's interval can lie a little elsewhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from practicum.policy.engine.speculation.proposal import Guess, View

Logits = TypeVar("Logits")

SHIFT = 0.03
"""By how much the borders of an interval typically differ between draft and target."""


class Drafter(Protocol[Logits]):
    """The model behind a `DraftModel`: whatever `Logits` are, they pass through untouched."""

    def logits(
        self, request_ids: Sequence[Hashable], contexts: Sequence[Sequence[int]]
    ) -> Sequence[Logits]:
        """Logits after each context, in one batch. The contexts of a request mostly continue
        those of earlier calls, but may part from them at any earlier place."""
        ...

    def next_token(self, request_id: Hashable, logits: Logits, uniform: float | None) -> Guess:
        """The token drawn as the target would draw it for this request; None is greedy."""
        ...

    def forget(self, request_id: Hashable) -> None:
        """No more contexts of this request will come."""
        ...


class DraftModel:
    """Satisfies `Proposer`."""

    name = "draft_model"

    def __init__(self, drafter: Drafter[Logits]) -> None:
        self._drafter = drafter

    def propose(self, views: Sequence[View], max_guesses: int) -> list[list[Guess]]:
        result: list[list[Guess]] = [[] for _ in views]
        for place in range(max_guesses):
            going = [n for n, view in enumerate(views) if _can_draw(view, place)]
            if not going:
                break
            logits = self._drafter.logits(
                [views[n].request_id for n in going],
                [
                    [*views[n].prompt, *views[n].tokens, *(guess.token for guess in result[n])]
                    for n in going
                ],
            )
            for n, mine in zip(going, logits, strict=True):
                numbers = views[n].uniforms
                number = None if numbers is None else numbers[place]
                result[n].append(self._drafter.next_token(views[n].request_id, mine, number))
        return result

    def finished(self, view: View) -> None:
        self._drafter.forget(view.request_id)


def _can_draw(view: View, place: int) -> bool:
    return place < view.max_new and (view.uniforms is None or place < len(view.uniforms))


def coupled_guess(
    logits: npt.NDArray[np.floating], uniform: float | None, temperature: float = 1.0
) -> Guess:
    """Inverse-CDF draw in the order of token ids; the likeliest token where there is no uniform.

    Example:
        coupled_guess(np.log([0.5, 0.5]), 0.75) is token 1, with its uniform 0.25 from a border
    """
    weights = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    weights /= weights.sum()
    if uniform is None:
        token = int(weights.argmax())
        second = float(np.partition(weights, -2)[-2]) if len(weights) > 1 else 0.0
        margin = (float(weights[token]) - second) / 2
    else:
        upper = weights.cumsum()
        token = min(int(np.searchsorted(upper, uniform, side="right")), len(weights) - 1)
        above = float(upper[token])
        margin = max(0.0, min(uniform - (above - float(weights[token])), above - uniform))
    return Guess(token, margin / (margin + SHIFT))
