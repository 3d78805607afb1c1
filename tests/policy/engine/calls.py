"""Prompts and calls that the engine's tests share."""

import asyncio
import dataclasses
from collections.abc import Sequence

from practicum.policy.engine import Engine
from practicum.sampling import Completion, Sampling

Call = tuple[Sequence[int], Sampling]

PREAMBLE = b"max(3,1)=3\nmax(5,9)=9\n"
PROMPTS = [
    [*PREAMBLE, *b"max(2,8)="],
    [*PREAMBLE, *b"max(7,4)="],
    [*PREAMBLE],
    [*b"3+4="],
    [257, *b"user\nhello", 258],
    [0],
]


async def gather(engine: Engine, calls: Sequence[Call]) -> list[Completion]:
    """All calls at once."""
    return list(await asyncio.gather(*(engine.generate(*call) for call in calls)))


def sampling(**changes: object) -> Sampling:
    return dataclasses.replace(Sampling(max_new_tokens=12), **changes)
