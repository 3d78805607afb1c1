"""A small HTTP server that answers JSON as a test says, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
Answer = Json | tuple[int, Json | str]
"""The body of a 200, or a status and its body."""
Route = Callable[[Json], Answer]


class FakeServer:
    """`routes` maps a path to what answers it; change it at any time. Unknown paths get a 404."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.calls: list[tuple[str, Json]] = []
        """Path with its query, and body."""
        self.url = ""

    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    def bodies(self, path: str) -> list[Json]:
        return [body for called, body in self.calls if called.split("?")[0] == path]

    def answer(self, path: str, body: Json) -> tuple[int, Json | str]:
        self.calls.append((path, body))
        route = self.routes.get(urlsplit(path).path)
        if route is None:
            return 404, {"detail": "Not Found"}
        answer = route(body)
        return answer if isinstance(answer, tuple) else (200, answer)


@contextlib.contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Serve on a free port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            content = self.rfile.read(length)
            status, answer = server.answer(self.path, json.loads(content) if content else {})
            encoded = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(status)
                self.send_header("content-length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
