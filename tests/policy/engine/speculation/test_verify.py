"""Verification gives the tokens of plain decoding, for any drafts whatever."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from practicum.policy.engine.speculation import coupled_guess, verify
from practicum.policy.engine.uniforms import uniforms

VOCABULARY = 5


def language(seed: int, temperature: float) -> Callable[[tuple[int, ...], float], int]:
    """Random logits for every past, the same whenever the past is the same."""

    def draw(past: tuple[int, ...], number: float) -> int:
        logits = np.random.default_rng([seed, *past]).normal(size=VOCABULARY) * 2
        return coupled_guess(logits, number if temperature else None, temperature or 1.0).token

    return draw


def verified(draw: Callable[[tuple[int, ...], float], int], past: list[int], drafts: list[int]):
    numbers = uniforms(7, 100)[len(past) :]
    return verify(drafts, lambda row: draw((*past, *drafts[:row]), numbers[row]))


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=6), max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_any_drafts_give_the_tokens_of_plain_decoding(
    seed: int, temperature: float, drafts_of_steps: list[list[int]], good: list[bool]
) -> None:
    draw = language(seed, temperature)
    numbers = uniforms(7, 12 * 7)
    plain: list[int] = []
    for number in numbers:
        plain.append(draw(tuple(plain), number))
    tokens: list[int] = []
    for drafts, right in zip(drafts_of_steps, good):
        if right:  # make all but the last draft true, so that long acceptances are tried as well
            drafts = [*plain[len(tokens) : len(tokens) + len(drafts[1:])], *drafts[:1]]
        tokens += verified(draw, tokens, drafts)
    assert tokens == plain[: len(tokens)]
    assert len(tokens) >= min(len(drafts_of_steps), 12)


def test_rows_are_drawn_in_order_and_none_after_a_wrong_draft() -> None:
    asked: list[int] = []

    def draw(row: int) -> int:
        asked.append(row)
        return [5, 8, 1][row]

    assert verify([5, 7], draw) == [5, 8]
    assert asked == [0, 1]


def test_all_right_drafts_bring_one_token_more() -> None:
    assert verify([5, 8], [5, 8, 1].__getitem__) == [5, 8, 1]
    assert verify([], [5].__getitem__) == [5]


def test_nothing_comes_after_the_end() -> None:
    assert verify([5, 8], [5, 8, 1].__getitem__, ends=lambda token: token == 5) == [5]


def test_verified_tokens_follow_the_targets_distribution() -> None:
    """Even where drafts depend on the same numbers as the tokens."""
    rng = np.random.default_rng(3)
    target, other = rng.normal(size=(2, 2, 8))
    counts = np.zeros((8, 8))
    accepted = 0
    exact = np.exp(target) / np.exp(target).sum(-1, keepdims=True)
    for numbers in np.random.default_rng(4).random((20_000, 2)).tolist():
        drafts = [coupled_guess(other[0], numbers[0]).token]
        tokens = verify(drafts, lambda row: coupled_guess(target[row], numbers[row]).token)  # noqa: B023
        accepted += len(tokens) - 1
        if len(tokens) == 1:  # the next step draws it from the same logits
            tokens.append(coupled_guess(target[1], numbers[1]).token)
        counts[tokens[0], tokens[1]] += 1
    expected = 20_000 * np.outer(exact[0], exact[1])
    test = stats.power_divergence(counts, expected, axis=None, lambda_="log-likelihood")
    assert test.pvalue > 0.001
    assert 0.1 < accepted / 20_000 < 0.98


def test_a_blind_draft_is_accepted_as_often_as_it_is_likely() -> None:
    logits = np.log([0.2, 0.5, 0.3])
    for draft, likely in enumerate([0.2, 0.5, 0.3]):
        hits = sum(
            len(verify([draft], lambda row: coupled_guess(logits, u).token)) == 2  # noqa: B023
            for u in np.random.default_rng(draft).random(10_000).tolist()
        )
        assert stats.binomtest(hits, 10_000, likely).pvalue > 0.001
