"""Thousands of random operations on the real engine: each answer is the answer alone, bit for bit.

Calls of every kind come, fork, are preempted, swapped and aborted, weights change under way,
guesses are run; the reference knows of none of it. `test_soak` does so to the scheduler on paper.
"""

import asyncio
import contextlib
import dataclasses
import math
import random
from pathlib import Path

import pytest
import torch

from policy.model.needs import needs_kernels
from practicum.errors import InfraError
from practicum.policy.engine import Engine, EngineOptions
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.live import Live
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Completion, Constraint, Delta, Sampling
from practicum.types import StopReason

from .alone import CONTEXT, Alone, set_weights, small, small_tokens
from .busy import Busy, Recorder

bf16 = torch.bfloat16


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return small_tokens(tmp_path_factory.mktemp("tokens"))


CONSTRAINTS = [
    Constraint("regex", "[a-z]{3,30}(, [a-z]{3,10})*"),
    Constraint("choice", '["yes", "no", "yesterday"]'),
    Constraint(
        "json_schema",
        '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},'
        ' "required": ["a", "b"], "additionalProperties": false}',
    ),
]

KINDS: list[dict[str, object]] = [
    {},
    {},
    {"temperature": 0.0},
    {"temperature": 0.0},
    {"temperature": 0.4},
    {"temperature": 0.6, "top_k": 20},
    {"top_p": 0.8, "top_logprobs": 3},
    {"min_p": 0.05, "temperature": 1.5},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.3, "temperature": 0.0},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"frequency_penalty": 0.2, "presence_penalty": -2.0, "temperature": 0.5},
    {"repetition_penalty": 0.8, "frequency_penalty": 0.3, "temperature": 0.0},
    {"logit_bias": ((97, 6.0), (98, 6.0), (10, -math.inf))},
    {"stop": ("a", "\n"), "logit_bias": ((97, 3.0),)},
    {"stop_token_ids": (*range(60, 70), 97)},
    {"ignore_eos": True, "logit_bias": ((258, 5.0),)},
    {"top_logprobs": 5},
    *({"constraint": constraint} for constraint in CONSTRAINTS),
]


def some_prompt(rng: random.Random, ended: list[Completion], asked: list[tuple[int, ...]]):
    """One of few beginnings and something of its own, or the next turn of a conversation."""
    if ended and rng.random() < 0.3:
        number = rng.randrange(max(0, len(ended) - 20), len(ended))
        turn = [*asked[number], *ended[number].token_ids, *rng.choices(range(97, 100), k=5)]
        if len(turn) < CONTEXT - 60:
            return turn
    shared = [rng.randrange(3) + 97] * rng.choice([1, 20, 32, 50, 64, 100])
    return [*shared, *rng.choices(range(97, 100), k=rng.choice([0, 1, 1, 40]))]


def some_sampling(rng: random.Random, prompt: list[int]) -> Sampling:
    most = rng.choice([1, 5, 20, 60, 100, 140])
    kind = rng.choice(KINDS)
    return Sampling(min(most, CONTEXT - len(prompt)), seed=rng.getrandbits(40), **kind)  # pyright: ignore


class Soak:
    """Random operations on one core."""

    def __init__(
        self,
        tokens: Tokens,
        dtype: torch.dtype,
        seed: int,
        num_pages: int,
        room: int | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.busy = Busy(
            tokens, dtype, self.rng,
            {"num_pages": num_pages, "num_slots": 8, "max_rows": 6, "max_step_tokens": 48},
            room=room,
        )  # fmt: skip
        self.ended: list[Completion] = []
        self.asked: list[tuple[int, ...]] = []
        self.num_aborted = 0

    def operate(self) -> None:
        rng, busy = self.rng, self.busy
        kind = rng.random()
        if kind < 0.13:
            if len(busy.scheduler.waiting) < 10:
                self._add()
        elif kind < 0.138 and len(busy.core):
            live = rng.choice([live for live in busy.lives if live.request.stop_reason is None])
            busy.core.abort(live)
            self.num_aborted += 1
        elif kind < 0.15:
            busy.publish()
        elif kind < 0.16:
            busy.scheduler.resize_swap(rng.choice([0, 2, 8, 20]))
        elif kind < 0.17:
            busy.eager.on = not busy.eager.on
        else:
            self._note(busy.step())

    def _add(self) -> None:
        rng = self.rng
        prompt = some_prompt(rng, self.ended, self.asked)
        sampling = some_sampling(rng, prompt)
        streaming = rng.random() < 0.5
        for _ in range(rng.choice([1, 1, 2, 6])):
            if rng.random() < 0.3:
                sampling = some_sampling(rng, prompt)
            sampling = dataclasses.replace(sampling, seed=rng.getrandbits(40))
            self.busy.add(prompt, sampling, streaming)

    def _note(self, ended: list[Live]) -> None:
        for live in ended:
            self.ended.append(live.completion())
            self.asked.append(live.request.prompt_ids)

    def check(self, alone: Alone, exact: bool) -> None:
        for live in self.busy.lives:
            self.busy.check_told(live)
            if live.request.stop_reason is not StopReason.ABORTED:
                check(live.completion(), live, alone, self.busy.versions(live), exact)


def check(done: Completion, live: Live, alone: Alone, versions: list[int], exact: bool) -> None:
    """In float32 without kernels the last bits of a product depend on how many rows it has."""
    expected = alone.complete(live.request.prompt_ids, live.request.sampling, versions)
    if exact:
        assert done == expected, live.request.sampling
        return
    assert done.token_ids == expected.token_ids
    assert (done.text, done.stop_reason) == (expected.text, expected.stop_reason)
    assert done.versions == expected.versions
    assert done.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert done.log_kept_mass == pytest.approx(expected.log_kept_mass, abs=1e-3)


def soak(
    tokens: Tokens, dtype: torch.dtype, seed: int, num_operations: int, room: int | None = None
) -> Soak:
    it = Soak(tokens, dtype, seed, 9 if room is not None else 10 + 2 * (seed % 3), room)
    for number in range(num_operations):
        it.operate()
        if number % 25 == 0:
            it.busy.scheduler.check()
    it.busy.run()
    it.check(Alone(dtype, tokens), dtype == bf16)
    it.busy.check_nothing_is_left()
    return it


@needs_kernels
def test_a_thousand_random_operations_change_no_answer_and_leak_no_page(tokens: Tokens) -> None:
    it = soak(tokens, bf16, seed=0, num_operations=1_000)
    assert it.busy.scheduler.counters.preemptions > 2


@needs_kernels
@pytest.mark.parametrize(("seed", "room"), [(0, 0), (1, 0)])
def test_what_is_computed_again_because_the_disk_is_full_is_the_same_to_the_bit(
    tokens: Tokens, seed: int, room: int
) -> None:
    it = soak(tokens, bf16, seed, num_operations=700, room=room)
    happened = it.busy.scheduler.counters
    assert happened.restarts > 1
    lost = [live for live in it.busy.lives if live.failure is not None]
    assert len(lost) == happened.lost_requests < 5
    assert all(isinstance(live.failure, InfraError) for live in lost)


def test_without_kernels_random_operations_change_no_token(tokens: Tokens) -> None:
    soak(tokens, torch.float32, seed=0, num_operations=300)


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_thousand_random_operations_change_no_answer_and_leak_no_page(
    tokens: Tokens, seed: int
) -> None:
    it = soak(tokens, bf16, seed, num_operations=4_000)
    happened = it.busy.scheduler.counters
    assert (
        min(
            it.num_aborted,
            it.busy.recorder.version,
            it.busy.eager.num_drafted,
            happened.hits,
            happened.joined_requests,
            happened.preemptions,
            happened.copied_pages,
            happened.swapped_out_pages,
            happened.swapped_in_pages,
            happened.dropped_pages,
        )
        > 10
    ), happened  # the pressure was real
    assert {done.stop_reason for done in it.ended} >= {
        StopReason.EOS, StopReason.STOP_STRING, StopReason.MAX_TOKENS
    }  # fmt: skip


# --- the same through the engine's thread -----------------------------------------------------


def recorded(engine: Engine, options: EngineOptions) -> Recorder:
    """The engine's runner, which remembers from now on what computed what."""
    num_pages = options.cache_bytes // KvPolicy().page_bytes(engine.model.shape, engine.model.dtype)
    recorder = Recorder(engine.model, num_pages, options.swap_folder)
    recorder.versions = {}
    engine._core.runner = recorder  # pyright: ignore[reportPrivateUsage]
    return recorder


@pytest.mark.parametrize(
    ("dtype", "speculate"),
    [
        pytest.param(bf16, False, marks=needs_kernels),
        pytest.param(bf16, True, marks=needs_kernels),
        (torch.float32, True),
    ],
)
async def test_callers_that_come_and_go_while_weights_change_get_their_own_answers(
    tokens: Tokens, dtype: torch.dtype, speculate: bool, tmp_path: Path
) -> None:
    model = small(dtype)
    page = KvPolicy().page_bytes(model.shape, dtype)
    options = EngineOptions(
        max_batch_rows=8, max_step_tokens=48, cache_bytes=14 * page,
        swap_bytes=6 * page, swap_folder=tmp_path, speculate=speculate,
    )  # fmt: skip
    engine = Engine(model, tokens, name="small", options=options)
    recorder = recorded(engine, options)
    rng = random.Random(7 + speculate)

    def train() -> None:
        with engine.lock:
            recorder.version += 1
            set_weights(model, recorder.version)
            engine.publish(recorder.version)

    async def call(prompt: list[int], sampling: Sampling, most: int) -> Completion | None:
        if most == 0:
            return await engine.generate(prompt, sampling)
        async with contextlib.aclosing(engine.stream(prompt, sampling)) as stream:
            deltas: list[Delta] = []
            async for delta in stream:
                deltas.append(delta)
                if sum(len(delta.token_ids) for delta in deltas) >= most:
                    return None
        whole = Delta.joined(deltas)
        assert whole.stop_reason is not None
        versions = tuple(of(prompt, sampling)[len(prompt) - 1 :])
        return Completion(
            whole.token_ids, whole.logprobs, versions, whole.text, whole.stop_reason,
            (), whole.top_logprobs,
        )  # fmt: skip

    def of(prompt: list[int], sampling: Sampling) -> list[int]:
        request = next(
            request
            for request in recorder.versions
            if request.sampling is sampling and request.prompt_ids == tuple(prompt)
        )
        return recorder.versions[request][: len(prompt) + len(request.token_ids) - 1]

    ended: list[Completion] = []
    asked: list[tuple[int, ...]] = []
    alone = Alone(dtype, tokens)
    for _ in range(4):
        wanted: list[tuple[list[int], Sampling, int]] = []
        while len(wanted) < 14:
            prompt = some_prompt(rng, ended, asked)
            for _ in range(rng.choice([1, 1, 3])):
                most = rng.choice([0, 0, 7, 1000])
                wanted.append((prompt, some_sampling(rng, prompt), most))
        tasks = [asyncio.ensure_future(call(*one)) for one in wanted]
        while engine.stats.requests < 10:
            await asyncio.sleep(0)
        await asyncio.to_thread(train)
        for task in rng.sample(tasks, 2):
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(train)
        for (prompt, sampling, _), answer in zip(wanted, done, strict=True):
            if answer is None or isinstance(answer, asyncio.CancelledError):
                continue
            assert isinstance(answer, Completion), answer
            expected = alone.complete(prompt, sampling, of(prompt, sampling))
            expected = dataclasses.replace(expected, log_kept_mass=answer.log_kept_mass)
            if dtype == bf16:
                assert answer == expected
            else:
                assert answer.token_ids == expected.token_ids
            ended.append(answer)
            asked.append(tuple(prompt))
    assert recorder.version == 8
    assert len(ended) > 20
    engine.close()
    scheduler = engine._core.scheduler  # pyright: ignore[reportPrivateUsage]
    scheduler.check()
    assert not scheduler.running
    assert not scheduler.waiting
