"""More calls than there is memory for, fast and on disk: what holds whatever fills the disk.

A module of its own, so that it can also run in a process whose files are limited.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from practicum.errors import InfraError, PolicyDead
from practicum.policy.engine import Engine, EngineOptions
from practicum.policy.engine.counters import Counters
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Completion, Sampling
from practicum.types import StopReason

from .alone import Alone, small
from .busy import Busy

MODEL = small(torch.float32)
PAGE_BYTES = KvPolicy().page_bytes(MODEL.shape, MODEL.dtype)
CALLS = [
    ([start] * 40, Sampling(60, seed=seed, temperature=3.0, ignore_eos=True))
    for start in range(3)
    for seed in range(6)
]


def same(one: Completion, other: Completion) -> bool:
    """The last bits of float32 products depend on how many rows they have."""
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    return replace(one, logprobs=()) == replace(other, logprobs=())


async def answers(engine: Engine) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(*call) for call in CALLS)))


def scarce_engine(tokens: Tokens, folder: Path, swap_pages: int = 0) -> Engine:
    """It has pages for one call and a quarter."""
    options = EngineOptions(
        cache_bytes=5 * PAGE_BYTES, swap_bytes=swap_pages * PAGE_BYTES, swap_folder=folder
    )
    return Engine(MODEL, tokens, name="scarce", options=options)


def check_nothing_fails(tokens: Tokens, folder: Path, swap_pages: int) -> Counters:
    """The engine answers as one that has memory for all, twice."""
    ample = Engine(MODEL, tokens, name="ample")
    scarce = scarce_engine(tokens, folder, swap_pages)
    expected = asyncio.run(answers(ample))
    for _ in range(2):
        done = asyncio.run(answers(scarce))
        assert all(same(*pair) for pair in zip(done, expected, strict=True))
    scheduler = scarce._core.scheduler  # pyright: ignore[reportPrivateUsage]
    scheduler.check()
    ample.close()
    scarce.close()
    return scheduler.counters


def check_only_the_outdated_fail(tokens: Tokens, folder: Path) -> int:
    """New weights come all the time: each answer is the answer alone, or there is none and it says
    why. Returns how many there were none of."""
    limits = {"num_pages": 6, "num_slots": 2, "max_rows": 8, "max_step_tokens": 64}
    busy = Busy(tokens, torch.float32, random.Random(1), limits, swap_folder=folder)
    alone = Alone(torch.float32, tokens)
    for prompt, sampling in CALLS:
        busy.add(prompt, sampling)
    num_steps = 0
    while len(busy.core):
        busy.step()
        busy.scheduler.check()
        num_steps += 1
        if num_steps % 20 == 0:
            busy.publish()
    lost = 0
    for live in busy.lives:
        busy.check_told(live)
        if live.failure is None:
            done = live.completion()
            request = live.request
            expected = alone.complete(request.prompt_ids, request.sampling, busy.versions(live))
            assert done.stop_reason is StopReason.MAX_TOKENS
            assert (done.token_ids, done.versions) == (expected.token_ids, expected.versions)
            continue
        lost += 1
        assert isinstance(live.failure, InfraError)
        assert not isinstance(live.failure, PolicyDead)
        assert "cannot swap keys and values to disk" in str(live.failure)
        assert live.completion().stop_reason is StopReason.ABORTED
    assert busy.scheduler.counters.lost_requests == lost
    busy.check_nothing_is_left()
    return lost
