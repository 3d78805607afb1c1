"""The engine: many concurrent calls, batched step by step, on one thread of its own.

Calls join and leave the batch at every step. New ones are collected until the event loop has
nothing left to do and enter together, so that the samples of a group share their prompt's work.
What a call returns does not depend on its company: every kernel treats a row alike in any batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from practicum.errors import PolicyDead, UsageError
from practicum.policy.engine.checks import check_sampling
from practicum.policy.engine.constraint import Grammars
from practicum.policy.engine.core import Core
from practicum.policy.engine.ending import Ending
from practicum.policy.engine.live import Listener, Live
from practicum.policy.engine.options import EngineOptions
from practicum.policy.engine.penalties import seen_for
from practicum.policy.engine.request import Request
from practicum.policy.engine.runner import Runner
from practicum.policy.engine.scheduler import Scheduler
from practicum.policy.engine.speculation import History, PromptLookup, Speculator
from practicum.policy.engine.stats import Stats
from practicum.policy.engine.uniforms import Stream
from practicum.policy.model.precision import EXACT, uniform
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.sampling import Completion, Delta, Sampling
from practicum.types import Message, StopReason, WeightVersion

QUIET_TURNS = 2
"""Turns of the event loop without a new call, after which the collected ones enter the batch."""


@dataclass(slots=True)
class _Collector:
    """Calls of one event loop that wait to enter the batch."""

    loop: asyncio.AbstractEventLoop
    pending: list[Live] = field(default_factory=list[Live])
    task: asyncio.Task[None] | None = None


class Engine:
    """A policy that runs in this process. Satisfies `protocols.Policy` and streams.

    A trainer in another thread shares the model's parameters and changes them like this:

        with engine.lock:
            ...  # overwrite the weights
            engine.publish(version)

    The lock is free between any two steps, so generation goes on with the new weights; every token
    records the version that sampled it, and keys of earlier tokens stay those of earlier weights.
    """

    def __init__(
        self,
        model: Transformer,
        tokens: Tokens,
        *,
        name: str,
        version: int = 0,
        options: EngineOptions = EngineOptions(),
    ) -> None:
        if tokens.largest_id >= model.shape.vocab_size:
            raise UsageError(
                f"the tokenizer in {tokens.folder} has ids up to {tokens.largest_id}, but the "
                f"model's vocabulary ends at {model.shape.vocab_size - 1}; they do not fit together"
            )
        self.model = model
        self.tokens = tokens
        self.name = name
        self.version = WeightVersion(version)
        self.lock = threading.RLock()
        self._core = _core(model, options)
        self._grammars = Grammars(tokens, model.shape.vocab_size)
        self._failure: BaseException | None = None
        self._collector: _Collector | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._door = threading.Lock()
        """Guards what the event loop hands to the engine's thread."""
        self._arrived: deque[Live] = deque()
        self._left: deque[Live] = deque()
        self._driving = False

    @property
    def context_length(self) -> int:
        return self.model.shape.context_length

    @property
    def stats(self) -> Stats:
        """Totals so far."""
        return self._core.stats

    def publish(self, version: int) -> None:
        """Say that the weights are now those of `version`; call it with the lock held."""
        with self.lock:
            self.version = WeightVersion(version)
            self._core.outdate()

    def close(self) -> None:
        """Refuse further calls and end those under way. Idempotent."""
        self._failure = self._failure or RuntimeError("it was closed")
        # Not a shutdown of the executor: calls that are being collected still want their refusal.
        self._executor.submit(lambda: None).result()

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self.tokens.render(messages)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Token ids of a chat with tools, by the model's template."""
        return self.tokens.render_chat(messages, tools)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; of a control token, those of its name."""
        return self.tokens.token_bytes(token_id)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; see `protocols.Policy.generate`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def listen(delta: Delta) -> None:
            if delta.stop_reason is not None:
                _tell(loop, lambda: done.done() or done.set_result(None))

        live = self._enter(prompt_ids, sampling, listen, streaming=False)
        try:
            await done
        finally:
            self._leave(live)
        self._check_ended_well(live)
        return live.completion()

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Delta]:
        """The completion as it grows. Closing the generator aborts the call."""
        loop = asyncio.get_running_loop()
        deltas: asyncio.Queue[Delta] = asyncio.Queue()
        live = self._enter(
            prompt_ids,
            sampling,
            lambda delta: _tell(loop, lambda: deltas.put_nowait(delta)),
            streaming=True,
        )
        try:
            while True:
                delta = await deltas.get()
                if delta.stop_reason is not None:
                    self._check_ended_well(live)
                yield delta
                if delta.stop_reason is not None:
                    return
        finally:
            self._leave(live)

    def _enter(
        self, prompt_ids: Sequence[int], sampling: Sampling, listener: Listener, *, streaming: bool
    ) -> Live:
        """Check a call and put it among the collected ones."""
        prompt = _whole_numbers(prompt_ids)
        self._check(prompt, sampling)
        if self._failure is not None:
            raise self._dead(self._failure)
        tokens = self.tokens
        live = Live(
            Request(prompt, sampling),
            Ending(
                sampling,
                tokens.eos_ids,
                tokens.decode,
                room=self.context_length - len(prompt),
                streaming=streaming,
            ),
            Stream(sampling.seed),
            seen_for(sampling, prompt),
            sampling.constraint
            and self._grammars.matcher(sampling.constraint, sampling.stop_token_ids),
            listener,
        )
        collector = self._collector_here()
        collector.pending.append(live)
        if collector.task is None or collector.task.done():
            collector.task = collector.loop.create_task(self._collect(collector))
        return live

    def _check(self, prompt: tuple[int, ...], sampling: Sampling) -> None:
        if not prompt:
            raise UsageError("the prompt is empty; a completion needs at least one token before it")
        total = len(prompt) + sampling.max_new_tokens
        if total > self.context_length:
            raise UsageError(
                f"a prompt of {len(prompt)} tokens and {sampling.max_new_tokens} new ones make "
                f"{total}, but {self.name} holds {self.context_length}; shorten the prompt or "
                "lower max_new_tokens"
            )
        vocab_size = self.model.shape.vocab_size
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < vocab_size)
            raise UsageError(f"token id {wrong} is outside the vocabulary 0 .. {vocab_size - 1}")
        check_sampling(sampling, vocab_size=vocab_size, eos_ids=self.tokens.eos_ids)
        self._core.scheduler.check_fits(len(prompt), sampling.max_new_tokens)

    def _check_ended_well(self, live: Live) -> None:
        """Raises what ended the call: its own failure, or PolicyDead if the engine ended."""
        if live.failure is not None:
            raise live.failure
        if live.request.stop_reason is StopReason.ABORTED and self._failure is not None:
            raise self._dead(self._failure)

    def _dead(self, failure: BaseException) -> PolicyDead:
        what = f"{type(failure).__name__}: {failure}"
        dead = PolicyDead(f"the engine of {self.name} has stopped ({what})")
        dead.__cause__ = failure
        return dead

    def _collector_here(self) -> _Collector:
        loop = asyncio.get_running_loop()
        current = self._collector
        if current is None or current.loop.is_closed():
            current = self._collector = _Collector(loop)
        if current.loop is not loop:
            raise UsageError("an engine serves one event loop at a time; make one engine for each")
        return current

    async def _collect(self, collector: _Collector) -> None:
        """Hand calls over, whenever for some turns no more have come."""
        while pending := collector.pending:
            quiet, known = 0, len(pending)
            while quiet < QUIET_TURNS:
                await asyncio.sleep(0)
                quiet = quiet + 1 if len(pending) == known else 0
                known = len(pending)
            entering = sorted(pending, key=lambda live: live.order)
            pending.clear()
            with self._door:
                self._arrived.extend(entering)
            self._drive_on()

    def _leave(self, live: Live) -> None:
        """The caller is gone."""
        live.abandoned = True
        if live.request.stop_reason is None:
            with self._door:
                self._left.append(live)
            self._drive_on()

    def _drive_on(self) -> None:
        with self._door:
            if self._driving:
                return
            self._driving = True
        self._executor.submit(self._drive)

    def _drive(self) -> None:
        """On the engine's thread: steps until nobody is left."""
        core = self._core
        while True:
            with self._door:
                arrived, left = list(self._arrived), list(self._left)
                self._arrived.clear()
                self._left.clear()
                if not (arrived or left or len(core)):
                    self._driving = False
                    return
            try:
                if self._failure is None:
                    self._step(arrived, left)
            except BaseException as error:  # whatever it is, callers must hear of it
                self._failure = self._failure or error
            if self._failure is not None:
                core.give_up()
                for live in arrived:
                    if live.request.stop_reason is None:
                        live.abort()
                        live.tell()

    def _step(self, arrived: Sequence[Live], left: Sequence[Live]) -> None:
        core = self._core
        for live in arrived:
            if not live.abandoned:
                core.add(live)
        for live in left:
            core.abort(live)
        if len(core):
            core.step(self.lock, lambda: self.version)


def _core(model: Transformer, options: EngineOptions) -> Core:
    kv, shape, dtype = options.kv, model.shape, model.dtype
    kv.check_layers(shape)
    page = kv.page_bytes(shape, dtype)
    num_pages, num_exact = kv.num_pages(
        shape, dtype, options.cache_bytes, options.max_batch_rows, options.max_step_tokens
    )
    if num_pages < 1:
        raise UsageError(
            f"cache_bytes is {options.cache_bytes}, but 32 tokens of this model take {page} bytes; "
            "give the engine more memory for keys and values"
        )
    speculator = Speculator([PromptLookup(), History()]) if options.speculate else None
    try:
        scheduler = Scheduler(
            num_pages=num_pages,
            num_slots=options.swap_bytes // page,
            max_rows=options.max_batch_rows,
            max_step_tokens=options.max_step_tokens,
            blocks=kv.blocks,
        )
        precision = EXACT if options.precision == "exact" else uniform(model, options.precision)
        runner = Runner(model, num_pages, options.swap_folder, kv, num_exact, precision)
    except MemoryError as error:
        raise UsageError(
            f"cache_bytes is {options.cache_bytes}, more than this machine can address; lower it"
        ) from error
    return Core(runner, scheduler, speculator)


def _whole_numbers(token_ids: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, token_ids))
    except TypeError:
        raise UsageError("token ids are whole numbers, and this prompt holds others") from None


def _tell(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    """Do something on the event loop, from the engine's thread."""
    with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
        loop.call_soon_threadsafe(action)
