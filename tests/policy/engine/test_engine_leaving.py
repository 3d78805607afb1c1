"""Callers, listeners and engines that end at the worst moment."""

import asyncio
import random
from dataclasses import replace

import pytest
import torch

from practicum.errors import PolicyDead, UsageError
from practicum.policy.engine import Engine, EngineOptions
from practicum.policy.engine.constraint import Mask
from practicum.policy.engine.live import Live
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.sampling import Completion, Delta, Sampling
from practicum.types import StopReason

from .alone import small, small_tokens
from .busy import Busy
from .calls import PROMPTS, gather, sampling

ONE_AT_A_TIME = EngineOptions(max_batch_rows=1)


def check_idle(engine: Engine) -> None:
    scheduler = engine._core.scheduler  # pyright: ignore[reportPrivateUsage]
    scheduler.check()
    assert not scheduler.running
    assert not scheduler.waiting


@pytest.mark.parametrize("options", [EngineOptions(), ONE_AT_A_TIME], ids=["together", "waiting"])
async def test_a_call_can_be_cancelled_at_every_moment(
    model: Transformer, tokens: Tokens, options: EngineOptions
) -> None:
    """So many turns of the event loop after it began: collected, waiting, running, ending."""
    engine = Engine(model, tokens, name="small", options=options)
    others = [(prompt, sampling(seed=seed)) for prompt in PROMPTS[:2] for seed in range(2)]
    expected = await gather(engine, others)
    ends: set[str] = set()
    for num_turns in [*range(12), *range(12, 300, 24)]:
        tasks = [asyncio.ensure_future(engine.generate(*call)) for call in others]
        doomed = [
            asyncio.ensure_future(engine.generate(prompt, Sampling(30, seed=7, ignore_eos=True)))
            for prompt in (PROMPTS[0], PROMPTS[3])
        ]
        for _ in range(num_turns):
            await asyncio.sleep(0)
        for task in doomed:
            task.cancel()
        for answer in await asyncio.gather(*doomed, return_exceptions=True):
            ends.add(type(answer).__name__)
        done = await asyncio.gather(*tasks)
        for one, other in zip(done, expected, strict=True):
            assert replace(one, logprobs=()) == replace(other, logprobs=())
    assert "CancelledError" in ends
    await engine.generate(*others[0])
    check_idle(engine)


async def test_a_call_cancelled_while_a_step_runs_ends_with_it(engine: Engine) -> None:
    with engine.lock:  # the step waits for it
        doomed = asyncio.ensure_future(engine.generate(PROMPTS[5], Sampling(100, ignore_eos=True)))
        for _ in range(20):
            await asyncio.sleep(0)
        doomed.cancel()
        await asyncio.wait([doomed])
    await engine.generate(PROMPTS[0], sampling())
    assert engine.stats.sampled_tokens < 20
    check_idle(engine)


# --- within a step ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bytes_only(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return small_tokens(tmp_path_factory.mktemp("tokens"))


def some_lives(busy: Busy) -> list[Live]:
    return [busy.add(prompt, Sampling(20, seed=s)) for prompt in PROMPTS[:3] for s in range(3)]


def answers(lives: list[Live]) -> list[tuple[tuple[int, ...], StopReason]]:
    done = [live.completion() for live in lives]
    return [(each.token_ids, each.stop_reason) for each in done]


def new_busy(tokens: Tokens) -> Busy:
    limits = {"num_pages": 40, "num_slots": 0, "max_rows": 16, "max_step_tokens": 64}
    return Busy(tokens, torch.float32, random.Random(1), limits)


class Breaks:
    """A matcher that fails at one of its calls."""

    def __init__(self, at: int, where: str) -> None:
        self._left, self._where = at, where

    def allowed_along(self, drafts: tuple[int, ...]) -> list[Mask | None]:
        if self._where == "allowed":
            self._count()
        return [None] * (1 + len(drafts))

    def advance(self, token_id: int) -> None:
        if self._where == "advance":
            self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UsageError("the grammar is too large")


@pytest.mark.parametrize("where", ["allowed", "advance"])
@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("number", [0, 4, 8])
def test_a_matcher_that_fails_ends_its_own_request(
    bytes_only: Tokens, number: int, at: int, where: str
) -> None:
    undisturbed, busy = new_busy(bytes_only), new_busy(bytes_only)
    expected = some_lives(undisturbed)
    lives = some_lives(busy)
    lives[number].matcher = Breaks(at, where)  # pyright: ignore[reportAttributeAccessIssue]
    undisturbed.run()
    busy.run()
    failed = lives.pop(number)
    assert isinstance(failed.failure, UsageError)
    assert failed.request.stop_reason is StopReason.ABORTED
    assert busy.told[failed][-1].stop_reason is StopReason.ABORTED
    del expected[number]
    assert answers(lives) == answers(expected)
    assert all(live.failure is None for live in lives)
    busy.check_nothing_is_left()


@pytest.mark.parametrize("streaming", [False, True])
def test_a_listener_that_raises_ends_its_own_request(bytes_only: Tokens, streaming: bool) -> None:
    undisturbed, busy = new_busy(bytes_only), new_busy(bytes_only)
    expected = some_lives(undisturbed)
    lives = some_lives(busy)
    heard: list[Delta] = []

    def listen(delta: Delta) -> None:
        heard.append(delta)
        raise OSError("the line is cut")

    bad = busy.add(PROMPTS[1], Sampling(20, seed=0, ignore_eos=True), streaming=streaming)
    bad.listener = listen
    undisturbed.run()
    busy.run()
    assert isinstance(bad.failure, OSError)
    assert len(heard) == 1
    assert len(bad.request.token_ids) == (1 if streaming else 20)
    assert answers(lives) == answers(expected)
    busy.check_nothing_is_left()


def test_guesses_of_a_step_that_was_missed_do_not_outlive_it(bytes_only: Tokens) -> None:
    """Preempted before its turn, then joined: what was guessed for one is not for two."""
    busy = new_busy(bytes_only)
    live = busy.add([1, 2, 3], Sampling(8, seed=0))
    (sequence,) = busy.scheduler.waiting
    sequence.drafts = (7, 7)  # as if it had run before
    busy.add([1, 2, 3], Sampling(8, seed=0, temperature=0.9))
    busy.run()
    assert live.request.stop_reason is StopReason.MAX_TOKENS
    busy.check_nothing_is_left()


# --- the end of the engine --------------------------------------------------------------------


async def test_the_death_of_an_engine_reaches_every_caller(
    tmp_path_factory: pytest.TempPathFactory, bytes_only: Tokens
) -> None:
    """Those that run, wait, are collected and stream; and all hear of the first cause."""
    model = small(torch.float32)
    engine = Engine(model, bytes_only, name="mortal", options=EngineOptions(max_batch_rows=2))
    asked = Sampling(200, ignore_eos=True)
    stream = engine.stream(PROMPTS[0], asked)
    await anext(stream)
    calls = [asyncio.ensure_future(engine.generate(prompt, asked)) for prompt in PROMPTS]
    for _ in range(10):
        await asyncio.sleep(0)
    with engine.lock, torch.no_grad():
        model.norm[0] = float("nan")
    calls += [asyncio.ensure_future(engine.generate(prompt, asked)) for prompt in PROMPTS]
    await asyncio.sleep(0)
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, PolicyDead)
        assert "not finite" in str(answer)
        assert isinstance(answer.__cause__, PolicyDead)
    with pytest.raises(PolicyDead, match="not finite"):
        async for _ in stream:
            pass


async def test_a_failure_within_a_step_is_told_as_it_is(engine: Engine) -> None:
    def break_down(*_: object) -> None:
        raise OSError("the disk is on fire")

    call = asyncio.ensure_future(engine.generate(PROMPTS[0], Sampling(90, ignore_eos=True)))
    await asyncio.sleep(0)
    engine._core.runner.run = break_down  # pyright: ignore
    late = [asyncio.ensure_future(engine.generate(prompt, sampling())) for prompt in PROMPTS]
    for answer in await asyncio.gather(call, *late, return_exceptions=True):
        assert isinstance(answer, PolicyDead | Completion)
        assert isinstance(answer, Completion) or "OSError: the disk is on fire" in str(answer)
    with pytest.raises(PolicyDead, match="the disk is on fire"):
        await engine.generate(PROMPTS[0], sampling())
