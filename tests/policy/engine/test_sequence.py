"""Sequences know what determines the contents of their pages, and fork without sharing lists."""

from policy.engine.paper import prompt, request
from practicum.policy.engine.pages import PAGE
from practicum.policy.engine.sequence import Sequence


def test_a_page_is_known_by_its_tokens_and_the_era_of_its_weights() -> None:
    sequence = Sequence.of(request(prompt(70)))
    sequence.computed(70, era=4)
    keys = sequence.page_keys(70)
    assert [key.tokens for key in keys] == [
        tuple(prompt(70)[start : start + PAGE]) for start in (0, 32, 64)
    ]
    assert [key.eras for key in keys] == [4, 4, 4]
    assert sequence.of_one_era(4)
    assert not sequence.of_one_era(5)


def test_a_page_computed_across_a_change_of_weights_knows_the_era_of_every_token() -> None:
    sequence = Sequence.of(request(prompt(100)))
    for end, era in [(10, 0), (30, 0), (40, 1), (64, 3), (100, 3)]:
        sequence.computed(end, era)
    assert sequence.eras == [(0, 0), (30, 1), (40, 3)]
    assert [key.eras for key in sequence.page_keys(100)] == [
        (0,) * 30 + (1,) * 2,
        (1,) * 8 + (3,) * 24,
        3,
        3,
    ]
    assert not sequence.of_one_era(3)


def test_a_fork_has_the_same_past_and_a_token_of_its_own() -> None:
    one, other = request(prompt(40), seed=1), request(prompt(40), seed=2)
    sequence = Sequence.of(one)
    sequence.requests.append(other)
    sequence.pages.extend([8, 3])
    sequence.computed(40, era=0)
    branch = sequence.fork([other], [2], era=0)
    sequence.extend([1], era=0)
    assert list(branch.tokens) == [*prompt(40), 2]
    assert list(branch.pages) == [8, 3]
    assert (branch.num_computed, branch.num_prompt) == (40, 40)
    branch.tokens.append(0)
    branch.pages.append(9)
    branch.computed(41, era=1)
    assert list(sequence.tokens) == [*prompt(40), 1]
    assert list(sequence.pages) == [8, 3]
    assert sequence.eras == [(0, 0)]
