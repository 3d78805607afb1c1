"""A real server in the test's own event loop, and OpenAI's own client to ask it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import openai

from practicum.endpoint import bind, make_app, serve
from practicum.endpoint.server import address_of
from practicum.protocols import Policy


class Served:
    """A running server: its address, and clients for it."""

    def __init__(self, policy: Policy, api_key: str | None, grace_s: float) -> None:
        self.app = make_app(policy, model_id="fake", api_key=api_key)
        self.listening = bind("127.0.0.1", 0, has_key=api_key is not None)
        self.address = address_of(self.listening)
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(
            serve(self.app, self.listening, grace_s=grace_s, stop=self.stop)
        )
        self.openai = openai.AsyncOpenAI(
            base_url=f"{self.address}/v1", api_key=api_key or "none", max_retries=0
        )
        self.http = httpx.AsyncClient(base_url=self.address, trust_env=False)

    async def metric(self, name: str) -> float:
        """The value of one line of `/metrics`."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


@asynccontextmanager
async def serving(
    policy: Policy, *, api_key: str | None = None, grace_s: float = 5
) -> AsyncGenerator[Served]:
    served = Served(policy, api_key, grace_s)
    try:
        yield served
    finally:
        await served.openai.close()
        await served.http.aclose()
        served.stop.set()
        await asyncio.wait_for(served.task, 10)
