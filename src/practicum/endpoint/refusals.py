"""Errors as OpenAI's clients know them: a status, and `{"error": {message, type, param, code}}`.

What went wrong inside is logged in full and told in one sentence; no traceback leaves the machine.
"""

from __future__ import annotations

import logging

from practicum.endpoint.streaming import Json
from practicum.errors import InfraError, PolicyDead, UsageError

log = logging.getLogger(__name__)


class Refusal(Exception):
    """A request that is not answered as asked."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        type: str = "invalid_request_error",
    ) -> None:
        """`param` names the field of the request; `code` is for programs."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.type = type

    @property
    def worth_retrying(self) -> bool:
        """Whether the same request may be answered a little later; clients of OpenAI ask this."""
        return self.status in (408, 429, 503) and self.code != "engine_dead"

    @property
    def body(self) -> Json:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def server_error(message: str, *, status: int = 503, code: str | None = None) -> Refusal:
    """Not the client's fault."""
    return Refusal(message, status=status, type="server_error", code=code)


def as_refusal(error: Exception) -> Refusal:
    """What to tell the client about any error."""
    match error:
        case Refusal():
            return error
        case PolicyDead():
            return server_error(str(error), code="engine_dead")
        case UsageError():
            return Refusal(str(error))
        case InfraError():
            return server_error(str(error), status=500)
        case _:
            log.error("a request failed", exc_info=error)
            return server_error("an error of this server, which it has logged", status=500)
