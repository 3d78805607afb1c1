"""JSON over HTTP to an engine: transient failures are retried, the others get their own error.

A request that is sent twice samples the same tokens twice, so a retry is safe. Cancelling a call
closes its connection, which is how servers learn that nobody waits any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import httpx

from practicum.errors import InfraError, PolicyDead, UsageError

Json = dict[str, Any]

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that the same request may not meet again."""

LONGEST_PAUSE_S = 30.0


class Connection:
    """A server's address and how patient we are with it."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 1800.0,
        attempts: int = 6,
        first_pause_s: float = 0.5,
    ) -> None:
        """`timeout_s` is for one answer; pauses between attempts double from `first_pause_s`."""
        if not url.startswith(("http://", "https://")):
            raise UsageError(
                f"{url!r} is no address of a server; it begins with http:// or https://"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = httpx.Timeout(timeout_s, connect=10.0, pool=None)
        self._attempts = attempts
        self._first_pause_s = first_pause_s
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._random = random.Random()  # spreads retries; nothing that is reported depends on it

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        return await self._call("GET", path, None, query or {})

    async def post(
        self, path: str, body: Json | None = None, query: Mapping[str, str] | None = None
    ) -> Json:
        """The answer as JSON.

        Raises UsageError if the server refuses the request, InfraError if it keeps failing at it,
        PolicyDead if it cannot be reached.
        """
        return await self._call("POST", path, body, query or {})

    async def close(self) -> None:
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = None

    def _client_here(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(
                base_url=self.url, headers=self._headers, timeout=self._timeout, limits=limits
            )
            self._loop = loop
        return self._client

    async def _call(
        self, method: str, path: str, body: Json | None, query: Mapping[str, str]
    ) -> Json:
        longest_s, wanted_s = self._first_pause_s, 0.0
        failure: InfraError | None = None
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(max(wanted_s, longest_s * self._random.uniform(0.5, 1.0)))
                longest_s = min(2 * longest_s, LONGEST_PAUSE_S)
            try:
                response = await self._client_here().request(
                    method, path, json=body, params=dict(query)
                )
            except httpx.TimeoutException as error:
                if not isinstance(error, httpx.ConnectTimeout):
                    raise InfraError(
                        f"{self.url}{path} did not answer within {self._timeout.read} s"
                    ) from error
                failure = self._unreachable(error)
            except httpx.TransportError as error:
                failure = self._unreachable(error)
            else:
                if response.is_success:
                    return self._read(response, path)
                failure = self._refusal(response, path)
                wanted_s = _retry_after_s(response)
        assert failure is not None
        raise failure

    def _unreachable(self, error: httpx.TransportError) -> PolicyDead:
        dead = PolicyDead(
            f"the server at {self.url} cannot be reached ({type(error).__name__}: {error}); is it "
            "running, and is that its address?"
        )
        dead.__cause__ = error
        return dead

    def _refusal(self, response: httpx.Response, path: str) -> InfraError:
        """The error to raise if this was the last attempt; raises what no retry mends."""
        status, message = response.status_code, _message(response)
        what = f"{self.url}{path} answered {status}: {message}"
        if status in TRANSIENT:
            return InfraError(f"{what} ({self._attempts} attempts)")
        if status in (401, 403):
            raise UsageError(f"{what}; is the API key right, and the endpoint enabled?")
        raise UsageError(what)

    def _read(self, response: httpx.Response, path: str) -> Json:
        if not response.content:
            return {}
        try:
            answer = response.json()
        except ValueError as error:
            raise InfraError(f"{self.url}{path} answered something that is not JSON") from error
        return answer if isinstance(answer, dict) else {"answer": answer}  # pyright: ignore[reportUnknownVariableType]


def _message(response: httpx.Response) -> str:
    """The server's own words, out of the envelopes in use."""
    try:
        answer: Any = response.json()
    except ValueError:
        return response.text[:300]
    for key in ("error", "message", "detail"):
        if isinstance(answer, dict) and key in answer:
            answer = answer[key]  # pyright: ignore[reportUnknownVariableType]
    return str(answer)[:300]  # pyright: ignore[reportUnknownArgumentType]


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), LONGEST_PAUSE_S) if text.isdecimal() else 0.0
