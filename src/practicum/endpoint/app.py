"""The server's routes: `make_app` over a policy is the whole application.

    POST /v1/chat/completions   POST /v1/completions   GET /v1/models   GET /health   GET /metrics

Concurrent requests are simply concurrent calls of the policy, which batches them; a client that
leaves cancels its own, and nobody else's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from practicum.endpoint.chat import plan_chat
from practicum.endpoint.completions import plan_completion
from practicum.endpoint.connection import ClientLeft, Reply, read_body, while_connected
from practicum.endpoint.generation import generate
from practicum.endpoint.guard import Guard
from practicum.endpoint.metrics import Metrics
from practicum.endpoint.refusals import Refusal, as_refusal, server_error
from practicum.endpoint.replies import Job
from practicum.endpoint.requests import AnyBody, ChatBody, CompletionBody, read
from practicum.endpoint.streaming import Delta, Json
from practicum.endpoint.workers import Workers
from practicum.errors import PolicyDead, did_you_mean
from practicum.protocols import Policy

MAX_BODY_BYTES = 16 << 20
MAX_REQUESTS = 1024
"""At a time; one more is told to come back."""
LEFT = 499
"""Status, in the metrics only, of a request whose client left."""


@dataclass(slots=True)
class Service:
    """What all requests share."""

    policy: Policy
    model_id: str
    metrics: Metrics = field(default_factory=Metrics)
    workers: Workers = field(default_factory=Workers)
    num_open: int = 0
    dead: str = ""
    """Why the policy cannot answer any more; empty while it can."""
    created: int = field(default_factory=lambda: int(time.time()))

    def check_model(self, name: str) -> None:
        if name != self.model_id:
            raise Refusal(
                f"there is no model {name!r} here.{did_you_mean(name, [self.model_id])}",
                status=404,
                param="model",
                code="model_not_found",
            )

    @property
    def card(self) -> Json:
        return {
            "id": self.model_id,
            "object": "model",
            "created": self.created,
            "owned_by": "practicum",
            "max_model_len": self.policy.context_length,
        }


def make_app(policy: Policy, *, model_id: str, api_key: str | None = None) -> Starlette:
    """An ASGI application that serves one policy under one name.

    Without a key it answers only to names of this machine; see `guard`.
    """
    service = Service(policy, model_id)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [service.card]})

    async def model(request: Request) -> Response:
        service.check_model(request.path_params["name"])
        return JSONResponse(service.card)

    async def health(request: Request) -> Response:
        state = {"status": "dead", "reason": service.dead} if service.dead else {"status": "ok"}
        return JSONResponse(state, 503 if service.dead else 200)

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):  # the router's own: no such path, or another method
            error = Refusal(
                f"{request.method} {request.url.path}: {error.detail}", status=error.status_code
            )
        refusal = as_refusal(error)
        return JSONResponse(refusal.body, refusal.status)

    chat = Exchange(service, ChatBody, plan_chat)
    completion = Exchange(service, CompletionBody, plan_completion)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completion, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(Guard, api_key=api_key)],
        exception_handlers={HTTPException: refused, Refusal: refused, Exception: refused},
    )


@dataclass(frozen=True, slots=True)
class Exchange(Generic[AnyBody]):
    """The ASGI application of one kind of request."""

    service: Service
    body: type[AnyBody]
    plan: Callable[[Policy, AnyBody], Job]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply, service = Reply(send), self.service
        status, start_s = 0, time.perf_counter()
        service.num_open += 1
        try:
            body = await read_body(scope, receive, MAX_BODY_BYTES)
            await while_connected(receive, self._answer(body, reply))
        except ClientLeft:
            status = LEFT
        except asyncio.CancelledError:  # the server's time to shut down is over
            await reply.refuse(server_error("the server is shutting down", code="shutting_down"))
        except Exception as error:
            if isinstance(error, PolicyDead):
                service.dead = str(error)
            refusal = as_refusal(error)
            status = refusal.status
            await reply.refuse(refusal)
        finally:
            service.num_open -= 1
            seen = service.metrics
            seen.requests.labels(scope["path"], str(status or reply.status)).inc()
            seen.request_seconds.observe(time.perf_counter() - start_s)

    async def _answer(self, body: bytes, reply: Reply) -> None:
        service = self.service
        if service.num_open > MAX_REQUESTS:
            raise Refusal(
                f"{MAX_REQUESTS} requests are open already; try again later",
                status=429,
                type="rate_limit_error",
                code="too_many_requests",
            )
        request = read(body, self.body)
        service.check_model(request.model)
        # tokenizing a long prompt takes a while, in which others' events should flow
        job = await service.workers.run(partial(self.plan, service.policy, request))
        service.metrics.prompt_tokens.inc(job.prompt_tokens)
        await (self._stream if job.stream else self._whole)(job, reply)
        service.metrics.reused_tokens.inc(job.reused_tokens)

    async def _whole(self, job: Job, reply: Reply) -> None:
        parts: list[list[Delta]] = [[] for _ in job.asks]

        async def take(index: int, delta: Delta) -> None:
            parts[index].append(delta)

        await generate(self.service.policy, job.asks, self.service.metrics, take)
        choices = [Delta.joined(part) for part in parts]
        for index, choice in enumerate(choices):
            job.count(index, choice)
        await reply.json(job.wire.whole(choices, job.usage))

    async def _stream(self, job: Job, reply: Reply) -> None:
        async def take(index: int, delta: Delta) -> None:
            if reply.status is None:
                for chunk in job.wire.opening():
                    await reply.event(chunk)
            job.count(index, delta)
            for chunk in job.wire.chunks(index, delta):
                await reply.event(chunk)

        await generate(self.service.policy, job.asks, self.service.metrics, take)
        if job.include_usage:
            await reply.event(job.wire.closing(job.usage))
        await reply.done()
