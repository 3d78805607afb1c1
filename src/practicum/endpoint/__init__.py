"""OpenAI's wire format over any `Policy`: requests in, completions and event streams out."""

from practicum.endpoint.app import make_app
from practicum.endpoint.server import bind, serve
from practicum.endpoint.streaming import Delta, NamesTokens, RendersChat, StreamingPolicy

__all__ = [
    "Delta",
    "NamesTokens",
    "RendersChat",
    "StreamingPolicy",
    "bind",
    "make_app",
    "serve",
]
