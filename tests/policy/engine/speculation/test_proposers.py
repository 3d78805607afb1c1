"""What each proposer remembers, and what it forgets."""

from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from practicum.errors import UsageError
from practicum.policy.engine.speculation import (
    DraftModel,
    Guess,
    History,
    PromptLookup,
    coupled_guess,
)
from practicum.policy.engine.speculation.history import MAX_ENDED

from .toy import Request


def request(name: str, prompt: str, said: str = "", length: int = 50, version: int = 0) -> Request:
    """A greedy request over characters that has said something."""
    tokens = [*map(ord, said)]
    return Request(name, tuple(map(ord, prompt)), length, 0, True, version, tokens)


def text(guesses: Sequence[Guess]) -> str:
    return "".join(chr(guess.token) for guess in guesses)


def test_lookup_continues_what_the_prompt_said() -> None:
    (guesses,) = PromptLookup().propose([request("a", "the red fox. Repeat:", "the r").view()], 6)
    assert text(guesses) == "ed fox"


def test_lookup_continues_what_the_completion_said_and_follows_it_as_it_grows() -> None:
    lookup, mine = PromptLookup(), request("a", "Go:", "one two")
    assert lookup.propose([mine.view()], 4) == [[]]
    mine.tokens += map(ord, " one t")
    assert text(lookup.propose([mine.view()], 3)[0]) == "wo "
    mine.tokens += map(ord, "en on")
    assert text(lookup.propose([mine.view()], 4)[0]) == "e te"  # of equal votes the latest


def test_a_prompt_is_indexed_once_for_all_its_requests_and_forgotten_with_the_last() -> None:
    lookup = PromptLookup()
    siblings = [request(name, "x" * 30, "ab") for name in "abc"]
    lookup.propose([sibling.view() for sibling in siblings], 4)
    assert lookup.num_tokens == 30 + 3 * 2
    for sibling in siblings:
        lookup.finished(sibling.view())
        lookup.finished(sibling.view())  # once more does no harm
    assert lookup.num_tokens == 0


def test_history_continues_as_siblings_under_way_and_ended_ones_did() -> None:
    history = History()
    ahead, behind = request("a", "Go:", "left, then right"), request("b", "Go:", "left")
    other = request("c", "No:", "left")
    proposals = history.propose([ahead.view(), behind.view(), other.view()], 6)
    assert [text(guesses) for guesses in proposals] == ["", ", then", ""]
    history.finished(ahead.view())
    assert text(history.propose([behind.view()], 12)[0]) == ", then right"


def test_history_knows_how_the_first_token_went_on() -> None:
    history = History()
    history.finished(request("a", "Go:", "left").view())
    assert text(history.propose([request("b", "Go:").view()], 8)[0]) == "left"


def test_history_prefers_the_latest_epoch_where_counts_are_near() -> None:
    history = History()
    for version, said in enumerate(["xyzA", "xyzA", "xyzA", "xyzB", "xyzB"]):
        history.finished(request(f"{version}", "Go:", said, version=4 * version).view())
    assert text(history.propose([request("b", "Go:", "xyz", version=16).view()], 1)[0]) == "B"


def test_history_stays_within_its_size_and_drops_the_prompts_unseen_for_longest() -> None:
    history = History(max_tokens=300)
    for number in range(10):
        history.finished(request("a", f"{number}:", "y" * 98).view())
        history.propose([request("b", "0:").view()], 1)  # the first prompt stays in use
        assert history.num_tokens <= 300 + 100
    history.finished(request("b", "0:").view())
    kept = [
        number
        for number in range(10)
        if history.propose([request("c", f"{number}:", "yy").view()], 1)[0]
    ]
    assert kept[-1] == 9
    assert len(kept) <= 3


def test_history_of_one_prompt_keeps_its_newest_completions() -> None:
    history = History()
    for number in range(3 * MAX_ENDED):
        history.finished(request(f"{number}", "Go:", f"<{number:03}> end").view())
    assert history.num_tokens <= (MAX_ENDED + 1) * 12
    newest = request("n", "Go:", f"<{3 * MAX_ENDED - 1}", length=60)
    assert text(history.propose([newest.view()], 5)[0]) == "> end"
    assert history.propose([request("o", "Go:", "<000").view()], 1)[0][0].confidence < 0.5


def test_a_history_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="holds nothing"):
        History(max_tokens=0)


class Doubled:
    """A drafter whose logits prefer the double of the last token; counts its calls."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.forgotten: list[Hashable] = []

    def logits(
        self, request_ids: Sequence[Hashable], contexts: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        self.batches.append(len(contexts))
        return [np.eye(16)[2 * context[-1] % 16] * 8 for context in contexts]

    def next_token(self, request_id: Hashable, logits: np.ndarray, uniform: float | None) -> Guess:
        return coupled_guess(logits, uniform)

    def forget(self, request_id: Hashable) -> None:
        self.forgotten.append(request_id)


def test_a_draft_model_guesses_token_after_token_for_the_whole_batch() -> None:
    drafter = Doubled()
    model = DraftModel(drafter)
    views = [
        Request("a", (1,), 10, greedy=True).view(),
        Request("b", (3,), 2, greedy=True).view(),
    ]
    proposals = model.propose(views, 3)
    assert [[guess.token for guess in guesses] for guesses in proposals] == [[2, 4, 8], [6, 12]]
    assert drafter.batches == [2, 2, 1]
    model.finished(views[0])
    assert drafter.forgotten == ["a"]


def test_a_coupled_guess_is_the_targets_own_token_where_the_models_agree() -> None:
    logits = np.random.default_rng(0).normal(size=(500, 20)) * 2
    near = logits + np.random.default_rng(1).normal(size=logits.shape) * 0.02
    numbers = np.random.default_rng(2).random(500).tolist()
    for temperature in (1.0, 0.5):
        exact = [coupled_guess(x, u, temperature) for x, u in zip(logits, numbers)]
        assert exact == [
            coupled_guess(x + 3, u, temperature)._replace(confidence=g.confidence)
            for x, u, g in zip(logits, numbers, exact)
        ]
        equal = [
            coupled_guess(x, u, temperature).token == g.token
            for x, u, g in zip(near, numbers, exact)
        ]
        assert np.mean(equal) > 0.94
        sure = [same for same, guess in zip(equal, exact) if guess.confidence > 0.5]
        assert np.mean(sure) > 0.99


def test_a_greedy_guess_is_sure_by_its_lead() -> None:
    close, far = np.log([0.5, 0.49, 0.01]), np.log([0.9, 0.05, 0.05])
    assert coupled_guess(close, None).token == coupled_guess(far, None).token == 0
    assert coupled_guess(close, None).confidence < coupled_guess(far, None).confidence
