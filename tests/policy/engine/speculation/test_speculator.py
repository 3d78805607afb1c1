"""The whole of speculation in a batch loop over toy languages: same tokens, fewer seconds."""

from collections.abc import Callable, Sequence

import pytest

from practicum.errors import UsageError
from practicum.policy.engine.speculation import Guess, History, PromptLookup, Speculator, View

from .toy import Clock, Draw, Request, affine_s, decode, markov

CPU_S = affine_s(0.030, 0.0015)
"""A small model on a CPU: the fixed cost equals 20 rows."""


def some(count: int, length: int = 120, epoch: int = 0) -> list[Request]:
    return [
        Request(f"{epoch}.{n}", (n // 4 % 3, 1, 2), length, seed=100 * epoch + n, version=epoch)
        for n in range(count)
    ]


def new_speculator(tick_s: float = 0.0001) -> Speculator:
    return Speculator([PromptLookup(), History()], clock=Clock(tick_s))


def compare(
    draw: Draw, make: Callable[[], list[Request]], speculator: Speculator, slots: int = 64
) -> tuple[float, float]:
    """Time without speculation over time with it, and tokens per step; the tokens are the same."""
    plain, fast = make(), make()
    plain_run = decode(plain, draw, CPU_S, None, slots)
    run = decode(fast, draw, CPU_S, speculator, slots)
    assert [r.tokens for r in fast] == [r.tokens for r in plain]
    return plain_run.seconds / run.seconds, run.tokens_per_step


def test_random_text_switches_it_off_at_bounded_cost() -> None:
    draw = markov(50, sharpness=0.0)
    speculator = new_speculator(tick_s=0.002)
    speedup, _ = compare(draw, lambda: some(200), speculator, slots=16)
    assert speculator.resting == {"prompt_lookup", "history"}
    assert speculator.stats.propose_s < 0.02 * speculator.stats.step_s
    assert speedup > 0.97


def test_repetitive_text_switches_it_on() -> None:
    draw = markov(20, sharpness=6.0)
    speculator = new_speculator()
    speedup, tokens_per_step = compare(draw, lambda: some(48), speculator, slots=4)
    assert speedup > 1.4
    assert tokens_per_step > 1.7
    assert speculator.stats.accepted > 0.4 * speculator.stats.drafted


def test_a_large_batch_takes_only_what_is_nearly_sure() -> None:
    draw = markov(20, sharpness=2.5)
    few, many = new_speculator(), new_speculator()
    compare(draw, lambda: some(12), few, slots=1)
    speedup, _ = compare(draw, lambda: some(96), many, slots=48)
    share = [s.stats.accepted / s.stats.drafted for s in (few, many)]
    assert share[0] < share[1]
    assert speedup > 0.98


def test_an_earlier_epoch_helps_the_next() -> None:
    draw = markov(50, sharpness=3.0)
    speculator = new_speculator()
    speedups = [
        compare(draw, lambda epoch=epoch: some(24, epoch=epoch), speculator, slots=4)[0]
        for epoch in (0, 1, 2)
    ]
    assert speedups[0] < speedups[1] < speedups[2]


def test_it_wakes_when_text_turns_repetitive() -> None:
    noise, pattern = markov(50, sharpness=0.0), markov(10, sharpness=8.0)
    speculator = new_speculator(tick_s=0.002)
    compare(noise, lambda: some(64), speculator, slots=8)
    assert speculator.resting
    speedup, _ = compare(pattern, lambda: some(64, epoch=1), speculator, slots=8)
    assert speculator.resting != {"prompt_lookup", "history"}
    assert speedup > 1.3


class Wrong:
    """Sure of itself and never right: each token is out of the language."""

    name = "wrong"

    def propose(self, views: Sequence[View], max_guesses: int) -> list[list[Guess]]:
        return [[Guess(-1, 0.9)] * max_guesses for _ in views]

    def finished(self, view: View) -> None:
        pass


def test_a_proposer_that_lies_costs_little_and_changes_nothing() -> None:
    speculator = Speculator([Wrong()], clock=Clock(0.0001))
    speedup, tokens_per_step = compare(markov(20, 1.0), lambda: some(64), speculator, slots=8)
    assert tokens_per_step == 1.0
    assert speculator.stats.drafted > 0
    assert speedup > 0.97


def test_unknown_costs_are_probed_within_the_allowance() -> None:
    """Rows are free here, unlike what is assumed: only probes can find that out."""

    class Unsure(Wrong):
        def propose(self, views: Sequence[View], max_guesses: int) -> list[list[Guess]]:
            return [[Guess(-1, 0.01)] for _ in views]

    speculator = Speculator([Unsure()], clock=Clock())
    requests = some(16, length=400)
    run = decode(requests, markov(20, 1.0), affine_s(0.1, 0.0), speculator)
    assert speculator.stats.probes >= 1
    assert run.seconds == pytest.approx(0.1 * 400)
    assert speculator.cost.measured(32)
    assert speculator.cost.seconds(32) == pytest.approx(0.1)


def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    speculator = new_speculator()
    decode(some(16), markov(20, sharpness=4.0), CPU_S, speculator, slots=4)
    assert speculator._pending == {}
    assert speculator.acceptance._requests == {}


def test_the_same_proposals_and_times_give_the_same_decisions() -> None:
    runs = [
        decode(some(24), markov(20, sharpness=3.0), CPU_S, new_speculator(), slots=4)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_requests_that_agree_so_far_are_worth_more_than_one() -> None:
    """One row serves four requests: a guess that does not pay for one pays for all."""

    class Half(Wrong):
        def propose(self, views: Sequence[View], max_guesses: int) -> list[list[Guess]]:
            return [[Guess(1, 0.15)] for _ in views]

    for num_requests, expected in ((1, [[], []]), (16, [[1], []])):
        speculator = Speculator([Half()], clock=Clock())
        for _ in range(20):
            for rows in (2, 3, 4):
                speculator.stepped(rows, 0.1 + 0.01 * rows)
        shared, alone = (
            View(n, "k", (1, 2), (), some(1)[0].view().version, 9, num_requests=count)
            for n, count in enumerate((num_requests, 1))
        )
        assert speculator.drafts([shared, alone]) == expected, num_requests


def test_only_those_who_draw_alike_are_counted_on() -> None:
    """Sixteen agree so far; a guess is for the first and for those that draw as it does."""

    class Half(Wrong):
        def propose(self, views: Sequence[View], max_guesses: int) -> list[list[Guess]]:
            return [[Guess(1, 0.15)] for _ in views]

    for num_apart, expected in ((0, [[1]]), (15, [[]])):
        speculator = Speculator([Half()], clock=Clock())
        for _ in range(20):
            for rows in (1, 2, 3):
                speculator.stepped(rows, 0.1 + 0.01 * rows)
        version = some(1)[0].view().version
        view = View("a", "k", (1, 2), (), version, 9, num_requests=16, num_apart=num_apart)
        assert speculator.drafts([view]) == expected


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="max_guesses"):
        Speculator([], max_guesses=0)
    with pytest.raises(UsageError, match="same name"):
        Speculator([History(), History()])
