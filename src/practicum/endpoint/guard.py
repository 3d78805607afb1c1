"""Who may ask: a key where there is one, and nobody's web page.

A browser lets any page send requests to this machine. Without a key, only requests that name this
machine are answered, so that no page gets in by a name that it points here; and bodies must be
declared as JSON, which a page cannot do without asking first.
"""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from practicum.endpoint.connection import Reply
from practicum.endpoint.refusals import Refusal

OPEN_PATHS = ("/health",)
"""Probes carry no key."""
THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """ASGI middleware that refuses before anything is read."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self.app = app
        self._api_key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await Reply(send).refuse(refusal)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS:
            if self._api_key is None:
                host = headers.get(b"host", b"").decode("latin-1")
                name = host if host.endswith("]") else host.rpartition(":")[0] or host
                if name.lower() not in THIS_MACHINE:
                    message = f"this server answers to {', '.join(THIS_MACHINE)}, not to {name!r}"
                    return Refusal(message, status=403, code="wrong_host")
            elif not self._has_key(headers):
                return Refusal(
                    "the API key is missing or wrong: send `Authorization: Bearer KEY`",
                    status=401,
                    code="invalid_api_key",
                )
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            return Refusal("the content type must be application/json", status=415)
        return None

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        assert self._api_key is not None
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._api_key)
