"""Clients that leave, clients that come together, and a server that is asked to stop."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from endpoint.served import Served, serving
from practicum.testing.streaming import FakeStreamingPolicy

HELLO: Any = [{"role": "user", "content": "hi"}]
PATIENCE_S = 20


class Held:
    """Holds completions up after `num_free` tokens of all together, and tells when they leave."""

    def __init__(self, num_free: int = 0) -> None:
        self.num_free = num_free
        self.held = asyncio.Semaphore(0)
        """Released once for every completion that is held up."""
        self.left = asyncio.Semaphore(0)
        """Released once for every completion that was ended from outside while it was held."""
        self.go = asyncio.Event()
        self.policy = FakeStreamingPolicy(lambda prompt, rng: "abcdef", between=self._between)

    async def _between(self) -> None:
        if self.num_free:
            self.num_free -= 1
            return
        self.held.release()
        try:
            await self.go.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.left.release()
            raise

    async def wait(self, semaphore: asyncio.Semaphore, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(count):
                await semaphore.acquire()


async def ask(served: Served, **options: Any) -> Any:
    return await served.openai.chat.completions.create(model="fake", messages=HELLO, **options)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_all_its_completions_and_no_other(stream: bool):
    held = Held()
    async with serving(held.policy) as served:
        other = asyncio.create_task(ask(served))
        await held.wait(held.held)
        leaving = asyncio.create_task(ask(served, stream=stream, n=3))
        await held.wait(held.held, 3)
        assert len(held.policy.running) == 4
        leaving.cancel()
        await held.wait(held.left, 3)
        assert len(held.policy.running) == 1
        held.go.set()
        assert (await other).choices[0].message.content == "abcdef"
        assert await served.metric("practicum_waiting") == 0
        assert await served.metric("practicum_running") == 0
        text = (await served.http.get("/metrics")).text
    assert 'practicum_requests_total{path="/v1/chat/completions",status="499"} 1.0' in text


async def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_its_completion():
    held = Held(num_free=2)
    async with serving(held.policy) as served:
        stream = await ask(served, stream=True)
        await held.wait(held.held)
        assert await served.metric("practicum_running") == 1
        await stream.close()
        await held.wait(held.left)
    assert not held.policy.running


async def test_twenty_requests_run_side_by_side():
    held = Held()
    async with serving(held.policy) as served:
        asking = [asyncio.create_task(ask(served, stream=i % 2 == 0)) for i in range(20)]
        await held.wait(held.held, 20)
        assert len(held.policy.running) == 20
        assert await served.metric("practicum_waiting") == 20
        held.go.set()
        replies = await asyncio.gather(*asking)
        texts = [
            "".join([chunk.choices[0].delta.content or "" async for chunk in reply])
            if isinstance(reply, openai.AsyncStream)
            else reply.choices[0].message.content
            for reply in replies
        ]
    assert texts == ["abcdef"] * 20


async def test_one_request_too_many_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("practicum.endpoint.app.MAX_REQUESTS", 1)
    held = Held()
    async with serving(held.policy) as served:
        first = asyncio.create_task(ask(served))
        await held.wait(held.held)
        with pytest.raises(openai.RateLimitError, match="1 requests are open already"):
            await ask(served)
        held.go.set()
        await first
        assert (await ask(served)).choices[0].message.content == "abcdef"


async def test_asked_to_stop_the_server_lets_requests_finish():
    held = Held(num_free=1)
    async with serving(held.policy) as served:
        stream = await ask(served, stream=True)
        whole = asyncio.create_task(ask(served))
        await held.wait(held.held, 2)
        served.stop.set()
        await refused_from_now_on(served)
        held.go.set()
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == "abcdef"
        assert (await whole).choices[0].message.content == "abcdef"
        await asyncio.wait_for(served.task, PATIENCE_S)


async def test_when_the_grace_time_is_over_clients_are_told():
    held = Held(num_free=1)
    async with serving(held.policy, grace_s=0) as served:
        stream = await ask(served, stream=True)
        whole = asyncio.create_task(ask(served))
        await held.wait(held.held, 2)
        served.stop.set()
        with pytest.raises(openai.APIError, match="shutting down"):
            _ = [chunk async for chunk in stream]
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            await whole
        await asyncio.wait_for(served.task, PATIENCE_S)
    assert not held.policy.running


async def refused_from_now_on(served: Served) -> None:
    """Wait until nobody new is let in."""
    host, port = served.address.removeprefix("http://").split(":")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                return
            writer.close()
            await asyncio.sleep(0.01)
