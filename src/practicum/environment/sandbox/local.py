"""The default backend: sandboxes of Linux namespaces, made by a helper process in milliseconds.

Everything blocks in threads of the pool's own, so that one pool serves any number of event loops.
One sandbox does one thing at a time: concurrent calls wait for each other. When a command ends, all
processes that it left behind are killed; nothing but files survives from one command to the next.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

from practicum.environment.sandbox.connection import Connection
from practicum.environment.sandbox.launch import NotPossible, Zygote
from practicum.environment.sandbox.mending import explain
from practicum.environment.sandbox.specification import base_environment, check_spec
from practicum.environment.sandbox.threads import Cancel, in_thread
from practicum.environment.sandbox.zygote.order import Order
from practicum.errors import SandboxError
from practicum.protocols import ExecResult, SandboxSpec

MAX_THREADS = 256


class LocalSandbox:
    """One sandbox; made by `LocalSandboxPool.open`."""

    def __init__(self, spec: SandboxSpec, threads: ThreadPoolExecutor) -> None:
        self._spec = spec
        self._threads = threads
        self._connection: Connection | None = None

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = 10.0,
        max_output: int = 64 * 1024,
    ) -> ExecResult:
        """Run a command to its end. `cwd` may be relative to the working directory."""
        assert argv, "a command has at least a name"
        run = partial(
            self._live().run,
            argv=list(argv),
            stdin=stdin,
            env={**base_environment(self._spec.workdir, "/tmp"), **self._spec.env, **(env or {})},
            cwd=os.path.join(self._spec.workdir, cwd or ""),
            timeout_s=timeout_s,
            max_output=max_output,
        )
        return await in_thread(self._threads, run)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The first `max_bytes` of a regular file; relative to the working directory.

        Opened inside, by PID 1 with the rights of the commands, so a path or link means nothing
        but what it means to them. Raises FileNotFoundError if there is no such readable file.
        """
        return await in_thread(self._threads, partial(self._live().read, path, max_bytes))

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file and the folders above it; a link at `path` is replaced.

        Raises OSError for what stands in the way: a folder of that name, a full disk.
        """
        await in_thread(self._threads, partial(self._live().write, path, content))

    def start(self, zygote: Zygote, name: str, cancel: Cancel) -> None:
        """Make it. Blocking."""
        spec = self._spec
        order = Order(
            name=name,
            workdir=spec.workdir,
            memory_mb=spec.memory_mb,
            storage_mb=spec.storage_mb,
            pids=spec.pids,
            cpus=spec.cpus,
            network=spec.network,
        )
        self._connection = Connection(zygote, order, lifetime_s=spec.timeout_s)
        for path, text in spec.files.items():
            try:
                self._connection.write(path, text.encode(), cancel)
            except OSError as error:
                raise SandboxError(
                    f"sandbox file {path!r} could not be written ({error.strerror}); "
                    f"storage_mb is {spec.storage_mb}"
                ) from None

    def stop(self, cancel: Cancel) -> None:
        """Kill all that is in it, and wait until it is gone. Blocking, idempotent."""
        if self._connection is not None:
            self._connection.close()

    def _live(self) -> Connection:
        if self._connection is None:
            raise SandboxError("the sandbox is not open")
        return self._connection


class LocalSandboxPool:
    """Sandboxes isolated by namespaces. The helper process starts with the first of them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="sandbox")
        self._names = itertools.count()
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        self._is_closed = False

    @property
    def isolation(self) -> Literal["namespaces", "none"]:
        return "namespaces"

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncGenerator[LocalSandbox]:
        """A sandbox for the length of an `async with`; see `SandboxPool.open`."""
        check_spec(spec)
        sandbox = LocalSandbox(spec, self._threads)
        try:
            await in_thread(self._threads, partial(self._start, sandbox))
            yield sandbox
        finally:
            await in_thread(self._threads, sandbox.stop)

    def _start(self, sandbox: LocalSandbox, cancel: Cancel) -> None:
        try:
            sandbox.start(self.zygote(), f"{next(self._names)}", cancel)
        except NotPossible as error:
            raise SandboxError(explain(error).as_text()) from None

    def zygote(self) -> Zygote:
        """The helper process, started if there is none alive. Raises NotPossible."""
        with self._lock:
            if self._is_closed:
                raise SandboxError("the sandbox pool is closed")
            if self._zygote is not None and not self._zygote.is_alive:
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = Zygote()
            return self._zygote

    def close(self) -> None:
        """End every sandbox and the helper process; running commands come back as dead."""
        with self._lock:
            self._is_closed = True
            if self._zygote is not None:
                self._zygote.close()
