"""Guesses for groups: for the one row of greedy samples, for rows that parted, and meanwhile."""

import random
from dataclasses import replace

import pytest
import torch

from practicum.policy.engine.speculation import History, PromptLookup, Speculator
from practicum.policy.engine.stats import Stats
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Completion, Sampling

from .alone import small_tokens
from .busy import Busy
from .speculation.toy import Clock

PROMPT = [97, 98, 99] * 10


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return small_tokens(tmp_path_factory.mktemp("tokens"))


class Steady(Speculator):
    """For which time passes as on a machine whose fixed cost is that of 20 rows."""

    def stepped(self, rows: int, seconds: float) -> None:
        super().stepped(rows, 0.020 + 0.001 * rows)


def run(
    tokens: Tokens, samplings: list[Sampling], *, speculate: bool, rounds: int = 2
) -> tuple[list[Completion], Stats]:
    """The same group some times, from the second on with a history."""
    limits = {"num_pages": 200, "max_rows": 16, "max_step_tokens": 200}
    busy = Busy(tokens, torch.float32, random.Random(0), limits)
    proposers = [PromptLookup(), History()]
    busy.core.speculator = Steady(proposers, clock=Clock(1e-5)) if speculate else None
    for _ in range(rounds):
        for sampling in samplings:
            busy.add(PROMPT, sampling)
        busy.run()
        busy.scheduler.check()
    busy.check_nothing_is_left()
    return [replace(live.completion(), logprobs=()) for live in busy.lives], busy.core.stats


def both(tokens: Tokens, samplings: list[Sampling]) -> tuple[Stats, Stats]:
    plain, did_plainly = run(tokens, samplings, speculate=False)
    quick, did = run(tokens, samplings, speculate=True)
    assert [one.token_ids for one in quick] == [one.token_ids for one in plain]
    assert did_plainly.drafted_tokens == did_plainly.accepted_tokens == 0
    assert did.sampled_tokens == did_plainly.sampled_tokens
    return did_plainly, did


def test_a_greedy_group_stays_one_row_and_has_guesses(tokens: Tokens) -> None:
    plainly, did = both(tokens, [Sampling(100, 0.0, seed=n, ignore_eos=True) for n in range(8)])
    assert did.decode_rows == did.decode_steps < 0.7 * plainly.decode_steps
    assert did.drafted_tokens > 50
    assert did.accepted_tokens % 8 == 0
    assert did.accepted_tokens == 8 * (plainly.decode_steps - did.decode_steps)


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_samples_that_parted_have_guesses_each(tokens: Tokens, temperature: float) -> None:
    group = [Sampling(100, temperature, seed=seed, ignore_eos=True) for seed in range(8)]
    plainly, did = both(tokens, group)
    assert did.drafted_tokens > 200, "one row alone would not have so many"
    assert did.accepted_tokens > 0.9 * did.drafted_tokens
    assert did.decode_rows < 0.7 * plainly.decode_rows


def test_in_a_group_of_all_kinds_each_takes_what_is_right_for_it(tokens: Tokens) -> None:
    kinds = [
        Sampling(80, 0.0), Sampling(30, 0.0), Sampling(80, 0.0, stop_token_ids=(97,)),
        Sampling(80, 0.05, seed=1), Sampling(60, 0.05, seed=2), Sampling(80, 0.0, top_logprobs=2),
        Sampling(80, 0.0, repetition_penalty=1.2), Sampling(80, 1.0, seed=3),
    ]  # fmt: skip
    _, did = both(tokens, [replace(kind, ignore_eos=True) for kind in kinds])
    assert did.accepted_tokens > did.drafted_tokens, "some served more than one"


def test_what_agrees_at_a_low_temperature_has_guesses_before_it_parts(tokens: Tokens) -> None:
    group = [Sampling(100, 0.02, seed=seed, ignore_eos=True) for seed in range(8)]
    _, did = both(tokens, group)
    assert did.accepted_tokens > 2 * did.drafted_tokens
