"""Conversations, queues and little memory: what is reused, what is swapped, who comes first."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from practicum.errors import UsageError
from practicum.policy.engine import Engine, EngineOptions
from practicum.policy.engine.counters import Counters
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Completion, Sampling
from practicum.types import StopReason

from .alone import small, small_tokens
from .busy import Busy

MODEL = small(torch.float32)
PAGE_BYTES = KvPolicy().page_bytes(MODEL.shape, MODEL.dtype)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return small_tokens(tmp_path_factory.mktemp("tokens"))


def new_engine(tokens: Tokens, num_pages: int = 100, num_slots: int = 0, **options: int) -> Engine:
    memory = EngineOptions(cache_bytes=num_pages * PAGE_BYTES, swap_bytes=num_slots * PAGE_BYTES)
    return Engine(MODEL, tokens, name="small", options=replace(memory, **options))


def counters(engine: Engine) -> Counters:
    return engine._core.scheduler.counters  # pyright: ignore[reportPrivateUsage]


def same(one: Completion, other: Completion) -> bool:
    """The last bits of float32 products depend on how many rows they have."""
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    return replace(one, logprobs=()) == replace(other, logprobs=())


# --- conversations ----------------------------------------------------------------------------


async def test_a_next_turn_computes_only_what_is_new(tokens: Tokens) -> None:
    engine = new_engine(tokens)
    prompt = [1, 2, 3] * 15
    computed = 0
    for turn in range(3):
        before = engine.stats
        done = await engine.generate(prompt, Sampling(20, seed=turn, ignore_eos=True))
        assert done.reused_tokens == (computed if turn else 0)
        did = engine.stats - before
        assert did.computed_prompt_tokens == len(prompt) - computed
        computed = len(prompt) + len(done.token_ids) - 1  # nothing follows the last one yet
        prompt = [*prompt, *done.token_ids, 5, 6, 7]


async def test_new_weights_reuse_nothing_whatever_their_number(tokens: Tokens) -> None:
    engine = new_engine(tokens)
    call = ([1, 2, 3] * 15, Sampling(5, seed=1))
    first = await engine.generate(*call)
    assert (await engine.generate(*call)).reused_tokens == 44
    for version in (1, 1, 0):
        engine.publish(version)
        done = await engine.generate(*call)
        assert done.reused_tokens == 0
        assert done.token_ids == first.token_ids
        assert set(done.versions) == {version}


async def converse(engine: Engine) -> list[Completion]:
    """One conversation waits for its tool while others use all the memory."""
    prompt = [9, 8, 7] * 25
    first = await engine.generate(prompt, Sampling(30, seed=1, ignore_eos=True))
    for start in range(4):
        await asyncio.gather(
            *(engine.generate([start * 4 + n] * 90, Sampling(20, seed=n)) for n in range(4))
        )
    turn = [*prompt, *first.token_ids, 5, 6, 7]
    return [first, await engine.generate(turn, Sampling(30, seed=2, ignore_eos=True))]


@pytest.mark.parametrize("on_disk", [False, True])
async def test_a_parked_conversation_leaves_fast_memory_and_comes_back(
    tokens: Tokens, on_disk: bool, tmp_path: Path
) -> None:
    plain = await converse(new_engine(tokens, 1000))
    assert plain[1].reused_tokens == 104
    small_one = new_engine(tokens, 12)
    forgetful = await converse(small_one)
    assert forgetful[1].reused_tokens == 0
    assert counters(small_one).dropped_pages > 0
    folder = {"swap_folder": tmp_path} if on_disk else {}
    swapping = new_engine(tokens, 12, 200, **folder)  # pyright: ignore[reportArgumentType]
    back = await converse(swapping)
    assert back[1].reused_tokens == 104
    assert counters(swapping).swapped_in_pages >= 3
    assert counters(swapping).dropped_pages == 0
    assert not list(tmp_path.iterdir()), "the file has no name"
    for one, *others in zip(plain, forgetful, back, strict=True):
        assert all(same(one, other) for other in others)


async def test_preemption_and_swapping_change_no_answer(tokens: Tokens) -> None:
    """Each group forks into more branches than there are pages for."""
    calls = [
        ([start] * 40, Sampling(60, seed=seed, temperature=3.0))
        for start in range(3)
        for seed in range(6)
    ]
    ample, scarce = new_engine(tokens, 400), new_engine(tokens, 9)
    expected = await asyncio.gather(*(ample.generate(*call) for call in calls))
    done = await asyncio.gather(*(scarce.generate(*call) for call in calls))
    assert counters(scarce).preemptions > 3
    assert counters(scarce).swapped_in_pages > 0
    assert counters(ample).preemptions == 0
    assert all(same(one, other) for one, other in zip(done, expected, strict=True))


async def test_what_fits_no_memory_is_refused_and_what_just_fits_is_served(tokens: Tokens) -> None:
    engine = new_engine(tokens, 3)
    done = await engine.generate([1] * 90, Sampling(7, ignore_eos=True))
    assert done.stop_reason is StopReason.MAX_TOKENS
    with pytest.raises(UsageError, match=r"need 4 pages of 32 tokens, but the engine has 3"):
        await engine.generate([1] * 90, Sampling(8))


# --- queues -----------------------------------------------------------------------------------


def new_busy(tokens: Tokens, **limits: int) -> Busy:
    limits = {"num_pages": 40, "num_slots": 0, "max_rows": 8, "max_step_tokens": 32, **limits}
    busy = Busy(tokens, torch.float32, random.Random(1), limits)
    busy.eager.on = False
    return busy


def test_a_long_prompt_is_computed_in_chunks_while_others_go_on(tokens: Tokens) -> None:
    busy = new_busy(tokens)
    talking = [busy.add([n], Sampling(60, seed=n, ignore_eos=True)) for n in range(4)]
    busy.step()
    long = busy.add(list(range(200)), Sampling(5, seed=9, ignore_eos=True))
    num_steps = 0
    while not long.request.token_ids:
        spoken = [len(live.request.token_ids) for live in talking]
        busy.step()
        num_steps += 1
        assert [len(live.request.token_ids) for live in talking] == [n + 1 for n in spoken]
    assert num_steps == 200 // (32 - 4) + 1
    busy.run()
    at_once = new_busy(tokens, max_step_tokens=512)
    whole = at_once.add(list(range(200)), long.request.sampling)
    at_once.run()
    assert same(long.completion(), whole.completion())


def test_a_long_request_is_not_overtaken_for_ever(tokens: Tokens) -> None:
    """Short ones keep coming, and would always fit where the long one does not."""
    busy = new_busy(tokens, num_pages=8)
    for number in range(6):
        busy.add([number], Sampling(20, seed=number, ignore_eos=True))
    busy.step()
    long = busy.add([7] * 150, Sampling(60, ignore_eos=True))
    num_steps = 0
    while long.request.stop_reason is None:
        if len(busy.core) < 12:
            busy.add([num_steps], Sampling(20, seed=num_steps, ignore_eos=True))
        busy.step()
        num_steps += 1
    assert long.request.stop_reason is StopReason.MAX_TOKENS
    # Two batches of those before it, its prompt, its tokens, and a few for coming and going.
    assert num_steps < 2 * 20 + 150 // 30 + 60 + 5
    busy.run()
    assert all(live.request.stop_reason is StopReason.MAX_TOKENS for live in busy.lives)
    busy.check_nothing_is_left()


def test_freed_rows_are_refilled_at_once(tokens: Tokens) -> None:
    busy = new_busy(tokens, max_rows=4)
    for number in range(12):
        busy.add([number, number], Sampling(3 + number % 5, seed=number, ignore_eos=True))
    while len(busy.core) > 4:
        busy.step()
        waiting = bool(busy.scheduler.waiting)
        ended = sum(live.request.stop_reason is not None for live in busy.lives[-12:])
        assert len(busy.scheduler.running) >= (4 - ended if waiting else 0)
        busy.step()
        assert len(busy.scheduler.running) >= (1 if waiting else 0)
    busy.run()
    num_tokens = sum(3 + number % 5 for number in range(12))
    # Four rows, each busy but for the step that brings the next prompt in.
    assert busy.core.stats.decode_steps <= -(-num_tokens // 4) + 4


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_batch_rows": 0}, "max_batch_rows must be a whole number from 1 on, not 0"),
        ({"max_batch_rows": 1.5}, "max_batch_rows must be a whole number"),
        ({"max_batch_rows": True}, "max_batch_rows must be a whole number"),
        ({"max_batch_rows": 512}, r"max_step_tokens \(512\) must be above max_batch_rows \(512\)"),
        ({"max_step_tokens": "9"}, "max_step_tokens"),
        ({"cache_bytes": 0}, "cache_bytes must be a whole number from 1 on"),
        ({"swap_bytes": -1}, "swap_bytes must be a whole number from 0 on, not -1"),
        ({"swap_folder": Path("/nowhere/at/all")}, "swap_folder /nowhere/at/all is not a folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        EngineOptions(**options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("cache_bytes", "named"), [(1000, "32 tokens of this model take"), (1 << 60, "more than this")]
)
def test_memory_that_cannot_be_is_refused(tokens: Tokens, cache_bytes: int, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Engine(MODEL, tokens, name="small", options=EngineOptions(cache_bytes=cache_bytes))
