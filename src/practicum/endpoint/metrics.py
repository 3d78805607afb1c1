"""What the server measures of itself, as Prometheus reads it at `GET /metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from practicum.endpoint.streaming import Delta

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """Counts of one server; each has a registry of its own, so that two can live in a process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "practicum_requests", "Requests by their end", ["path", "status"], registry=registry
        )
        self.prompt_tokens = Counter(
            "practicum_prompt_tokens", "Tokens of prompts, as asked", registry=registry
        )
        self.reused_tokens = Counter(
            "practicum_reused_tokens", "Prompt tokens that were there already", registry=registry
        )
        self.sampled_tokens = Counter(
            "practicum_sampled_tokens", "Tokens of completions", registry=registry
        )
        self.waiting = Gauge(
            "practicum_waiting", "Completions without a first token", registry=registry
        )
        self.running = Gauge(
            "practicum_running", "Completions between first and last token", registry=registry
        )
        self.request_seconds = Histogram(
            "practicum_request_seconds",
            "From a request to the end of its reply",
            buckets=SECONDS,
            registry=registry,
        )
        self.first_token_seconds = Histogram(
            "practicum_first_token_seconds",
            "From asking for a completion to its first token",
            buckets=SECONDS,
            registry=registry,
        )
        self.next_token_seconds = Histogram(
            "practicum_next_token_seconds",
            "Mean time of every token after the first, by completion",
            buckets=TOKEN_SECONDS,
            registry=registry,
        )

    @contextmanager
    def completion(self) -> Generator[Callable[[Delta], None]]:
        """Follow one completion: call what it gives with every delta."""
        asked_s = time.perf_counter()
        first_s: float | None = None
        later_tokens = 0
        self.waiting.inc()

        def see(delta: Delta) -> None:
            nonlocal first_s, later_tokens
            self.sampled_tokens.inc(len(delta.token_ids))
            if first_s is not None:
                later_tokens += len(delta.token_ids)
            elif delta.token_ids:
                first_s = time.perf_counter()
                self.first_token_seconds.observe(first_s - asked_s)
                self.waiting.dec()
                self.running.inc()

        try:
            yield see
        finally:
            (self.waiting if first_s is None else self.running).dec()
            if first_s is not None and later_tokens:
                self.next_token_seconds.observe((time.perf_counter() - first_s) / later_tokens)

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)
