"""A batch loop over a language that needs no network, under a clock of its own.

`decode` does what an engine does around speculation: ask for drafts, draw every row that the drafts
make known, tell the time. The language decides the tokens, `step_s` what a step costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from practicum.policy.engine.speculation import Speculator, View, verify
from practicum.policy.engine.uniforms import uniforms
from practicum.types import WeightVersion

Draw = Callable[["Request", Sequence[int], float], int]
"""The next token of a request after these sampled ones, drawn by this number."""


class Clock:
    """Stands still but for `tick_s` at each look."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now, self.tick_s = 0.0, tick_s

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now


@dataclass(slots=True)
class Request:
    name: str
    prompt: tuple[int, ...]
    length: int
    seed: int = 0
    greedy: bool = False
    version: int = 0
    tokens: list[int] = field(default_factory=list[int])
    numbers: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = uniforms(self.seed, self.length).tolist()

    def view(self) -> View:
        number = len(self.tokens)
        return View(
            request_id=self.name,
            key=self.prompt,
            prompt=self.prompt,
            tokens=self.tokens,
            version=WeightVersion(self.version),
            max_new=self.length - len(self.tokens),
            uniforms=None if self.greedy else self.numbers[number : number + 16],
        )


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    steps: int
    rows: int
    tokens: int

    @property
    def tokens_per_step(self) -> float:
        """Per sequence and step: 1 without speculation."""
        return self.tokens / (self.rows or 1)


def affine_s(fixed_s: float, row_s: float) -> Callable[[int], float]:
    return lambda rows: fixed_s + row_s * rows


def decode(
    requests: Sequence[Request],
    draw: Draw,
    step_s: Callable[[int], float],
    speculator: Speculator | None = None,
    slots: int = 64,
) -> Run:
    """Complete all requests, at most so many at a time."""
    seconds, steps, sequence_steps, num_tokens = 0.0, 0, 0, 0
    live, waiting = list(requests[:slots]), list(requests[slots:])
    while live:
        drafts = [[] for _ in live]
        if speculator is not None:
            before_s = speculator.stats.propose_s
            drafts = speculator.drafts([request.view() for request in live])
            seconds += speculator.stats.propose_s - before_s
        rows = len(live) + sum(map(len, drafts))
        for request, mine in zip(live, drafts, strict=True):
            assert len(mine) < request.length - len(request.tokens)

            def next_token(row: int, request: Request = request, mine: list[int] = mine) -> int:
                sampled = [*request.tokens, *mine[:row]]
                return draw(request, sampled, request.numbers[len(sampled)])

            new = verify(mine, next_token)
            request.tokens.extend(new)
            num_tokens += len(new)
        took_s = step_s(rows)
        seconds, steps, sequence_steps = seconds + took_s, steps + 1, sequence_steps + len(live)
        if speculator is not None:
            speculator.stepped(rows, took_s)
        for request in [r for r in live if len(r.tokens) == r.length]:
            live.remove(request)
            if speculator is not None:
                speculator.finished(request.view())
            if waiting:
                live.append(waiting.pop(0))
    return Run(seconds, steps, sequence_steps, num_tokens)


def markov(num_tokens: int, sharpness: float, seed: int = 0) -> Draw:
    """A language whose next token depends on the last two, the more surely the sharper."""
    table = np.random.default_rng(seed).normal(size=(num_tokens, num_tokens, num_tokens))
    weights = np.exp(sharpness * table)
    upper = (weights / weights.sum(-1, keepdims=True)).cumsum(-1).tolist()

    def draw(request: Request, sampled: Sequence[int], number: float) -> int:
        first, second = [*request.prompt[-2:], *sampled[-2:]][-2:]
        return min(bisect_right(upper[first][second], number), num_tokens - 1)

    return draw
