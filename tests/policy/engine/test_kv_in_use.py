"""Coded and sparse keys and values under pressure: each answer is the answer alone, bit for bit.

The reference has the same policy, computes a prompt in one piece on pages that are all exact, and
knows of no chunks, forks, prefix hits, preemptions or swaps.
"""

import asyncio
import random
from pathlib import Path

import pytest
import torch

from policy.model.needs import needs_kernels
from practicum.errors import UsageError
from practicum.policy.engine import Engine, EngineOptions
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.model.tiny import tiny_config, write_tiny
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.sampling import Sampling
from practicum.types import StopReason

from .alone import Alone, small, small_tokens
from .busy import Busy

bf16 = torch.bfloat16
CONTEXT = 512
ROWS, STEP_TOKENS = 4, 96
BEGINNINGS = [[97 + number % 7 for number in range(start, start + 300)] for start in (0, 3)]
POLICIES = {
    "int8": KvPolicy(bits=8),
    "int4": KvPolicy(bits=4),
    "int4_more_exact": KvPolicy(bits=4, recent=128),
    "int4_top": KvPolicy(bits=4, top_pages=2),
    "top": KvPolicy(top_pages=2, recent=128),
    "window": KvPolicy(window=100, sinks=4),
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return small_tokens(tmp_path_factory.mktemp("tokens"))


def some_prompt(rng: random.Random, busy: Busy) -> list[int]:
    """A beginning that others have too, up to a block's end or not, or the next turn."""
    ended = [live for live in busy.lives if live.request.stop_reason]
    if ended and rng.random() < 0.3:
        request = rng.choice(ended[-20:]).request
        turn = [*request.prompt_ids, *request.token_ids, *rng.choices(range(97, 100), k=5)]
        if len(turn) < CONTEXT - 160:
            return turn
    shared = rng.choice(BEGINNINGS)[: rng.choice([40, 100, 126, 128, 130, 200, 256, 290])]
    return [*shared, *rng.choices(range(97, 100), k=rng.choice([1, 2, 40]))]


def add_some(rng: random.Random, busy: Busy) -> None:
    prompt = some_prompt(rng, busy)
    for _ in range(rng.choice([1, 1, 2, 6])):
        temperature = rng.choice([0.0, 0.7, 1.0])
        most = rng.choice([1, 10, 60, 150])
        busy.add(prompt, Sampling(most, temperature, seed=rng.getrandbits(40), ignore_eos=True))


def operate(rng: random.Random, busy: Busy) -> None:
    kind = rng.random()
    if kind < 0.1:
        if len(busy.scheduler.waiting) < 8:
            add_some(rng, busy)
    elif kind < 0.107 and len(busy.core):
        busy.core.abort(rng.choice([x for x in busy.lives if x.request.stop_reason is None]))
    elif kind < 0.112:
        busy.publish()
    elif kind < 0.12:
        busy.scheduler.resize_swap(rng.choice([0, 3, 12]))
    elif kind < 0.13:
        busy.eager.on = not busy.eager.on
    else:
        busy.step()


def soak(
    tokens: Tokens,
    kv: KvPolicy,
    seed: int,
    num_operations: int,
    total: int = 31,
    room: int | None = None,
) -> Busy:
    rng = random.Random(seed)
    _, num_exact = kv.num_pages(small(bf16).shape, bf16, 10**9, ROWS, STEP_TOKENS)
    limits = {
        "num_pages": total, "num_slots": 6, "max_rows": ROWS, "max_step_tokens": STEP_TOKENS,
    }  # fmt: skip
    busy = Busy(tokens, bf16, rng, limits, kv, min(num_exact, total), CONTEXT, room=room)
    for number in range(num_operations):
        operate(rng, busy)
        if number % 25 == 0:
            busy.scheduler.check()
    busy.run()
    alone = Alone(bf16, tokens, kv, CONTEXT)
    for live in busy.lives:
        busy.check_told(live)
        if live.request.stop_reason is not StopReason.ABORTED:
            request = live.request
            right = alone.complete(request.prompt_ids, request.sampling, busy.versions(live))
            assert live.completion() == right
    busy.check_nothing_is_left()
    return busy


@needs_kernels
@pytest.mark.parametrize("name", ["int8", "int4_top"])
def test_hundreds_of_random_operations_change_no_answer(tokens: Tokens, name: str) -> None:
    happened = soak(tokens, POLICIES[name], seed=1, num_operations=300).scheduler.counters
    counts = happened.hits, happened.preemptions, happened.copied_pages, happened.swapped_in_pages
    assert min(counts) > 1, happened  # the pressure was real


@needs_kernels
@pytest.mark.parametrize("room", [0, 3])
def test_neither_does_a_full_disk(tokens: Tokens, room: int) -> None:
    """Where an unfinished block finds no room its sequence cannot be parked."""
    happened = soak(tokens, POLICIES["int8"], 0, 300, total=20, room=room).scheduler.counters
    assert happened.restarts > 1, happened


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", POLICIES)
def test_random_operations_change_no_answer(tokens: Tokens, name: str, seed: int) -> None:
    happened = soak(tokens, POLICIES[name], seed, num_operations=500).scheduler.counters
    assert happened.copied_pages > 1
    assert (happened.hits > 1) == (name != "int4_more_exact")


@needs_kernels
@pytest.mark.parametrize("name", ["int4", "top"])
def test_a_block_is_found_only_where_it_was_completed(tokens: Tokens, name: str) -> None:
    kv = POLICIES[name]
    limits = {"num_pages": 60, "max_rows": 4, "max_step_tokens": 400}
    busy = Busy(tokens, bf16, random.Random(0), limits, kv, context=CONTEXT)
    busy.eager.on = False
    beginning = BEGINNINGS[0]
    # Side by side, on pages of their own; the first ends within the block that the other completes.
    busy.add(beginning[:100], Sampling(1, 0.0))
    busy.add([*beginning[:100], *beginning[:100]], Sampling(2, 0.0))
    busy.run()
    last = busy.add([*beginning[:100], *beginning[:100], 5, 6, 7], Sampling(90, 0.0))
    busy.run()
    assert last.request.reused_tokens == 128
    alone = Alone(bf16, tokens, kv, CONTEXT)
    expected = alone.complete(last.request.prompt_ids, last.request.sampling, busy.versions(last))
    assert last.completion() == expected


def test_what_is_under_way_keeps_its_unfinished_block_exact(tokens: Tokens) -> None:
    limits = {"num_pages": 60, "max_rows": 4, "max_step_tokens": 400}
    busy = Busy(tokens, bf16, random.Random(0), limits, POLICIES["int4"], context=CONTEXT)
    busy.add(BEGINNINGS[0][:200], Sampling(60, seed=1))
    busy.add(BEGINNINGS[1][:150], Sampling(60, seed=2))
    busy.step()
    first, second = (list(sequence.pages) for sequence in busy.scheduler.running)
    assert sorted(busy.recorder.needed()) == sorted([*first[4:7], second[4]])


@needs_kernels
@pytest.mark.parametrize("name", ["int8", "int4"])
async def test_an_engine_serves_coded_pages(tokens: Tokens, name: str, tmp_path: Path) -> None:
    kv, model = POLICIES[name], small(bf16, context=CONTEXT)
    options = EngineOptions(
        max_batch_rows=3, max_step_tokens=64, cache_bytes=290_000, kv=kv,
        swap_bytes=50_000, swap_folder=tmp_path, speculate=True,
    )  # fmt: skip
    engine = Engine(model, tokens, name="small", options=options)
    store = engine._core.runner.store  # pyright: ignore[reportPrivateUsage]
    assert store.coded is not None
    assert store.exact.shape[1] < store.coded.shape[1]
    assert store.exact.nbytes + store.coded.nbytes <= options.cache_bytes
    alone = Alone(bf16, tokens, kv, CONTEXT)
    for _ in range(2):
        asked = [
            (beginning[:length], Sampling(100, seed=seed, ignore_eos=True))
            for beginning in BEGINNINGS
            for length in (90, 150, 260)
            for seed in range(2)
        ]
        answers = await asyncio.gather(*(engine.generate(*one) for one in asked))
        for (prompt, sampling), answer in zip(asked, answers, strict=True):
            assert answer == alone.complete(prompt, sampling, [0] * (len(prompt) + 99))
    happened = engine._core.scheduler.counters  # pyright: ignore[reportPrivateUsage]
    assert happened.hits > 0
    assert happened.preemptions > 0
    engine.close()


@pytest.mark.parametrize("memory", [10**5, 10**6, 10**7, 10**8])
@pytest.mark.parametrize("name", POLICIES)
def test_pages_fit_their_memory_and_those_that_must_be_exact_are_enough(
    name: str, memory: int
) -> None:
    kv, shape = POLICIES[name], small(bf16).shape
    num_pages, num_exact = kv.num_pages(shape, bf16, memory, ROWS, STEP_TOKENS)
    exact = KvPolicy().page_bytes(shape, bf16)
    one = kv.page_bytes(shape, bf16)
    extra = num_exact * exact if kv.bits < 16 else 0
    assert num_pages * one + extra <= memory < (num_pages + 1) * one + extra + exact
    assert num_exact == num_pages or num_exact >= ROWS * (kv.recent // 32 + 5) + STEP_TOKENS // 32


def test_heads_that_cannot_be_coded_are_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path, config=tiny_config(hidden_size=48, num_layers=1, context_length=64))
    model = load_transformer(tmp_path, bf16)
    assert model.shape.head_size % 32
    with pytest.raises(UsageError, match="multiple of 32"):
        Engine(model, Tokens(tmp_path), name="t", options=EngineOptions(kv=KvPolicy(bits=8)))
