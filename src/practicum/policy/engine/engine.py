"""The engine: many concurrent `generate` calls, one batch at a time, on one thread of its own.

Calls are collected until the event loop has nothing left to do, sorted, and run together. Sorting
makes a batch independent of who called first, so that a run repeats bit for bit. Calls that arrive
while a batch runs form the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from practicum.errors import PolicyDead, UsageError
from practicum.policy.engine.batch import Host, run_batch
from practicum.policy.engine.rows import Request, chunks
from practicum.policy.engine.stats import Stats
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.protocols import Completion, Sampling
from practicum.types import Message, WeightVersion

QUIET_TURNS = 2
"""Turns of the event loop without a new call, after which a batch is complete."""

MAX_CACHE_BYTES = 2 << 30
"""Most memory for the keys and values of one batch."""


@dataclass(slots=True)
class _Collector:
    """Calls of one event loop that wait for the next batch."""

    loop: asyncio.AbstractEventLoop
    pending: list[tuple[Request, asyncio.Future[Completion]]] = field(
        default_factory=list[tuple[Request, "asyncio.Future[Completion]"]]
    )
    task: asyncio.Task[None] | None = None


class Engine:
    """A policy that runs in this process. Satisfies `protocols.Policy`.

    A trainer in another thread shares the model's parameters and changes them like this:

        with engine.lock:
            ...  # overwrite the weights
            engine.publish(version)

    The lock is free between any two tokens, so generation goes on with the new weights; every token
    records the version that sampled it, and keys of earlier tokens stay those of earlier weights.
    """

    def __init__(
        self,
        model: Transformer,
        tokens: Tokens,
        *,
        name: str,
        version: int = 0,
        max_batch_rows: int = 128,
    ) -> None:
        if tokens.largest_id >= model.shape.vocab_size:
            raise UsageError(
                f"the tokenizer in {tokens.folder} has ids up to {tokens.largest_id}, but the "
                f"model's vocabulary ends at {model.shape.vocab_size - 1}; they do not fit together"
            )
        if max_batch_rows < 1:
            raise UsageError(f"max_batch_rows must be at least 1, not {max_batch_rows}")
        self.model = model
        self.tokens = tokens
        self.name = name
        self.version = WeightVersion(version)
        self.lock = threading.RLock()
        self._max_rows = max_batch_rows
        self._stats = Stats()
        self._failure: BaseException | None = None
        self._collector: _Collector | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    @property
    def context_length(self) -> int:
        return self.model.shape.context_length

    @property
    def stats(self) -> Stats:
        """Totals so far."""
        return self._stats

    def publish(self, version: int) -> None:
        """Say that the weights are now those of `version`; call it with the lock held."""
        with self.lock:
            self.version = WeightVersion(version)

    def close(self) -> None:
        """Refuse further calls and wait for the running batch. Idempotent."""
        self._failure = self._failure or RuntimeError("it was closed")
        # Not a shutdown of the executor: calls that are being collected still want their refusal.
        self._executor.submit(lambda: None).result()

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self.tokens.render(messages)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; see `protocols.Policy.generate`."""
        prompt = tuple(prompt_ids)
        self._check(prompt, sampling)
        if self._failure is not None:
            raise self._dead(self._failure)
        fills_context = len(prompt) + sampling.max_new_tokens == self.context_length
        request = Request(prompt, sampling, fills_context)
        collector = self._collector_here()
        future = collector.loop.create_future()
        collector.pending.append((request, future))
        if collector.task is None or collector.task.done():
            collector.task = collector.loop.create_task(self._collect(collector))
        try:
            return await future
        finally:
            request.abandoned = True  # tells a batch to drop it if the caller was cancelled

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
        if "" in sampling.stop:
            raise UsageError("a stop string must not be empty")

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
        """Run batches until no call waits."""
        while pending := collector.pending:
            quiet, known = 0, len(pending)
            while quiet < QUIET_TURNS:
                await asyncio.sleep(0)
                quiet = quiet + 1 if len(pending) == known else 0
                known = len(pending)
            batch = sorted(pending, key=lambda entry: entry[0].order)
            pending.clear()
            loop = collector.loop
            try:
                await loop.run_in_executor(self._executor, self._run, batch, loop)
            finally:
                # Answers reach the loop before the end of the batch does, so that calls are left
                # over only if the loop is being stopped and cancelled this very task.
                for request, future in batch:
                    request.abandoned = True
                    future.cancel()

    def _run(
        self,
        batch: Sequence[tuple[Request, asyncio.Future[Completion]]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """On the engine's thread: answer every call of a batch."""
        futures = dict(batch)

        def record(stats: Stats) -> None:
            self._stats += stats

        def finish(request: Request, completion: Completion) -> None:
            _tell(loop, futures.pop(request), completion)

        host = Host(self.model, self.tokens, self.lock, lambda: self.version, record, finish)
        try:
            if self._failure is None:
                parts = chunks(list(futures), self.model.shape, self._max_rows, MAX_CACHE_BYTES)
                for part in parts:
                    if waiting := [request for request in part if not request.abandoned]:
                        run_batch(host, waiting)
        except BaseException as error:  # whatever it is, callers must hear of it
            self._failure = error
        if self._failure is not None:
            for future in futures.values():
                _tell(loop, future, self._dead(self._failure))


def _tell(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Completion],
    answer: Completion | PolicyDead,
) -> None:
    """Answer a call from the engine's thread."""

    def settle() -> None:
        if future.done():  # the caller was cancelled
            return
        if isinstance(answer, Completion):
            future.set_result(answer)
        else:
            future.set_exception(answer)

    with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle)
