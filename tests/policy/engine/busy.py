"""The engine's core under the test's own hands: synchronous, and every answer is checked.

A recorder between core and runner notes which weights computed each token of each request; with
that the reference replays it alone.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from practicum.errors import InfraError
from practicum.policy.engine.constraint import Grammars
from practicum.policy.engine.core import Core
from practicum.policy.engine.ending import Ending
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.live import Live
from practicum.policy.engine.page_store import PageStore
from practicum.policy.engine.penalties import seen_for
from practicum.policy.engine.request import Request
from practicum.policy.engine.runner import Runner
from practicum.policy.engine.scheduler import Scheduler
from practicum.policy.engine.speculation import History, PromptLookup, View
from practicum.policy.engine.step import Step
from practicum.policy.engine.uniforms import Stream
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Delta, Sampling
from practicum.types import StopReason, WeightVersion

from .alone import CONTEXT, set_weights, small


class Recorder(Runner):
    """A runner that remembers which version computed what."""

    version = 0

    def run(self, step: Step) -> Tensor:
        for run in step.runs:
            for request in run.sequence.requests:
                # What a request found at its first run can only be of the weights of now.
                before = self.versions.get(request, [self.version] * run.first)
                assert len(before) >= run.first, "a token was left out"
                self.versions[request] = before[: run.first] + [self.version] * run.num_tokens
        return super().run(step)

    versions: dict[Request, list[int]]


class SmallDisk(PageStore):
    """It has room for some slots and no more."""

    room: int

    def save(self, page: int, slot: int, *, exact: bool = True) -> None:
        if slot >= self.room:
            raise InfraError("cannot swap keys and values to disk: it is full")
        super().save(page, slot, exact=exact)


class Eager:
    """In the place of a `Speculator`: runs whatever is proposed, and now and then nonsense."""

    def __init__(self, rng: random.Random) -> None:
        self._proposers = [PromptLookup(), History()]
        self._rng = rng
        self.on = True
        self.num_drafted = 0

    def drafts(self, views: Seq[View], other_rows: int = 0) -> list[list[int]]:
        if not self.on:
            return [[] for _ in views]
        proposals = [proposer.propose(views, 6) for proposer in self._proposers]
        result: list[list[int]] = []
        for number, view in enumerate(views):
            guesses = [g.token for g in self._rng.choice(proposals)[number]][: view.max_new - 1]
            if self._rng.random() < 0.1:
                guesses = [self._rng.randrange(259) for _ in range(self._rng.randint(1, 3))]
            result.append(guesses)
            self.num_drafted += len(guesses)
        return result

    def stepped(self, rows: int, seconds: float) -> None: ...

    def finished(self, view: View) -> None:
        for proposer in self._proposers if self.num_drafted else ():
            proposer.finished(view)


@dataclass
class Busy:
    """A core, what it was asked and what it said."""

    tokens: Tokens
    dtype: torch.dtype
    rng: random.Random
    limits: dict[str, int]
    kv: KvPolicy = field(default_factory=KvPolicy)
    num_exact: int | None = None
    context: int = CONTEXT
    swap_folder: Path | None = None
    room: int | None = None
    """Pages that fit outside the pool; None for any number"""
    lives: list[Live] = field(default_factory=list[Live])
    told: dict[Live, list[Delta]] = field(default_factory=dict[Live, list[Delta]])

    def __post_init__(self) -> None:
        model = small(self.dtype, context=self.context)
        num_pages = self.limits["num_pages"]
        self.recorder = Recorder(model, num_pages, self.swap_folder, self.kv, self.num_exact)
        self.recorder.versions = {}
        if self.room is not None:
            store = SmallDisk(
                model.shape, num_pages, model.dtype, self.kv, self.num_exact, self.swap_folder
            )
            store.room = self.room
            self.recorder.store = store
        self.scheduler = Scheduler(**self.limits, blocks=self.kv.blocks)
        self.eager = Eager(self.rng)
        self.core = Core(self.recorder, self.scheduler, self.eager)  # pyright: ignore
        self._grammars = Grammars(self.tokens, model.shape.vocab_size)

    def add(self, prompt: Seq[int], sampling: Sampling, streaming: bool = False) -> Live:
        deltas: list[Delta] = []
        prompt, room = tuple(prompt), self.context - len(prompt)
        constraint = sampling.constraint
        live = Live(
            Request(prompt, sampling),
            Ending(sampling, self.tokens.eos_ids, self.tokens.decode, room, streaming),
            Stream(sampling.seed),
            seen_for(sampling, prompt),
            constraint and self._grammars.matcher(constraint, sampling.stop_token_ids),
            deltas.append,
        )  # fmt: skip
        self.core.add(live)
        self.lives.append(live)
        self.told[live] = deltas
        return live

    def publish(self) -> None:
        self.recorder.version += 1
        set_weights(self.recorder.model, self.recorder.version)

    def step(self) -> list[Live]:
        if not len(self.core):
            return []
        version = WeightVersion(self.recorder.version)
        return self.core.step(contextlib.nullcontext(), lambda: version)

    def run(self) -> None:
        while len(self.core):
            self.step()

    def versions(self, live: Live) -> list[int]:
        """Of the weights that computed each token of its own."""
        request = live.request
        return self.recorder.versions[request][
            : len(request.prompt_ids) + len(request.token_ids) - 1
        ]

    def check_told(self, live: Live) -> None:
        """What its listener heard, in however many pieces, is its completion."""
        joined, done = Delta.joined(self.told[live]), live.completion()
        assert joined.token_ids == done.token_ids
        assert joined.logprobs == done.logprobs
        assert joined.top_logprobs == done.top_logprobs
        assert joined.text == done.text
        assert joined.stop_reason == done.stop_reason
        assert joined.reused_tokens == done.reused_tokens
        assert [delta.stop_reason for delta in self.told[live][:-1]].count(None) == len(
            self.told[live][:-1]
        )
        if done.stop_reason is not StopReason.MAX_TOKENS:
            return
        assert len(done.token_ids) == live.request.sampling.max_new_tokens

    def check_nothing_is_left(self) -> None:
        """Everything has ended: the tree alone holds pages, and without it all are free."""
        self.scheduler.check()
        assert not self.scheduler.running
        assert not self.scheduler.waiting
        self.scheduler.publish()
        self.scheduler.tables.begin_step()
        self.scheduler.check()
        assert self.scheduler.tables.pages.num_free == self.scheduler.tables.pages.total
        assert self.scheduler.tables.slots.num_used == 0
