"""UNSAFE backend without isolation: a temporary folder, rlimits and a process group.

A command here can read every file of the user, reach the network and, by starting a session of its
own, outlive its time-out. For tests and for trying things on macOS; never for a model in training
on a machine that matters. Files named by absolute paths are those below the spec's `workdir`.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from practicum.environment.sandbox.outcome import Report, make_result
from practicum.environment.sandbox.pump import Pump
from practicum.environment.sandbox.specification import base_environment, check_spec
from practicum.environment.sandbox.threads import Cancel, in_thread
from practicum.errors import SandboxError
from practicum.protocols import ExecResult, SandboxSpec

LOOK_EVERY_S = 0.005
"""How often a running command is looked at: portable, unlike a descriptor for its end."""
DRAIN_S = 0.5
"""How long the output of processes that escaped is still taken."""
# Each limit on its own, because not every system knows every limit. The command replaces the shell.
_LIMITED = """
for limit in "-c 0" "-t {cpu_s}" "-v {memory_kb}" "-f {file_blocks}" "-n 1024"; do
    ulimit $limit 2>/dev/null
done
exec "$@"
"""


class ProcessSandbox:
    """One temporary folder to run commands in; made by `ProcessSandboxPool.open`."""

    def __init__(self, spec: SandboxSpec, threads: ThreadPoolExecutor) -> None:
        self._spec = spec
        self._threads = threads
        self._ends_at = time.monotonic() + spec.timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="practicum-sandbox-")).resolve()
        self._root = self._folder / "work"
        self._running: set[int] = set()
        self._is_closed = False
        for name in ("work", "tmp"):
            (self._folder / name).mkdir()
        for path, text in spec.files.items():
            self._write(path, text.encode())

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
        """Run a command to its end, then kill its process group."""
        assert argv, "a command has at least a name"
        if self._is_closed or time.monotonic() >= self._ends_at:
            raise SandboxError("the sandbox is closed or its time is over")
        base = base_environment(str(self._root), str(self._folder / "tmp"))
        run = partial(
            self._run,
            argv=argv,
            stdin=stdin,
            env={**base, **self._spec.env, **(env or {})},
            cwd=self._locate(cwd or "."),
            timeout_s=timeout_s,
            max_output=max_output,
        )
        return await in_thread(self._threads, run)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The first `max_bytes` of a regular file below the working directory."""

        def read(cancel: Cancel) -> bytes:
            file = self._locate(path)
            if not file.is_file():
                raise FileNotFoundError(2, "Not a regular file of the sandbox", path)
            with file.open("rb") as stream:
                return stream.read(max_bytes)

        return await in_thread(self._threads, read)

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file below the working directory."""
        await in_thread(self._threads, lambda cancel: self._write(path, content))

    def _write(self, path: str, content: bytes) -> None:
        file = self._locate(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def _locate(self, path: str) -> Path:
        """Where a sandbox path really is. Raises FileNotFoundError outside of the folder."""
        relative = PurePosixPath(path)
        if relative.is_absolute():
            if not relative.is_relative_to(self._spec.workdir):
                raise FileNotFoundError(2, "Not below the working directory", path)
            relative = relative.relative_to(self._spec.workdir)
        located = (self._root / relative).resolve()
        if not located.is_relative_to(self._root):
            raise FileNotFoundError(2, "Not below the working directory", path)
        return located

    def _run(
        self,
        cancel: Cancel,
        *,
        argv: Sequence[str],
        stdin: bytes,
        env: Mapping[str, str],
        cwd: Path,
        timeout_s: float,
        max_output: int,
    ) -> ExecResult:
        started = time.monotonic()
        deadline = min(started + timeout_s, self._ends_at)
        pump = Pump(stdin, max_output)
        try:
            near, out, err = pump.far_ends
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._limits(timeout_s), "sh", *argv],
                stdin=near,
                stdout=out,
                stderr=err,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
            pump.close_far_ends()
            report, timed_out = self._attend(process, pump, deadline, cancel)
            pump.drain(time.monotonic() + DRAIN_S)
        finally:
            pump.close()
        wall_s = time.monotonic() - started
        return make_result(report, pump, timed_out=timed_out, wall_s=wall_s)

    def _limits(self, timeout_s: float) -> str:
        return _LIMITED.format(
            cpu_s=math.ceil(timeout_s * max(1.0, self._spec.cpus)) + 1,
            memory_kb=self._spec.memory_mb * 1024,
            file_blocks=self._spec.storage_mb * 2048,
        )

    def _attend(
        self, process: subprocess.Popen[bytes], pump: Pump, deadline: float, cancel: Cancel
    ) -> tuple[Report, bool]:
        pid = process.pid
        self._running.add(pid)
        timed_out = False
        while True:
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                break
            if cancel.is_set or self._is_closed or time.monotonic() >= deadline:
                timed_out = not cancel.is_set and not self._is_closed
                _kill_group(pid)
                _, status, usage = os.wait4(pid, 0)
                break
            pump.run_until([cancel.fd], min(deadline, time.monotonic() + LOOK_EVERY_S))
        process.returncode = os.waitstatus_to_exitcode(status)
        _kill_group(pid)
        self._running.discard(pid)
        cpu_s = usage.ru_utime + usage.ru_stime
        return Report(True, status, cpu_s, usage.ru_maxrss * 1024, 0, 0, False), timed_out

    def stop(self) -> None:
        """Kill what runs and remove the folder. Idempotent."""
        self._is_closed = True
        for pid in list(self._running):
            _kill_group(pid)
        shutil.rmtree(self._folder, ignore_errors=True)


class ProcessSandboxPool:
    """Folders without isolation. See the warning on top of the module."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(64, thread_name_prefix="unsafe-sandbox")
        self._lock = threading.Lock()
        self._open: set[ProcessSandbox] = set()
        self._is_closed = False

    @property
    def isolation(self) -> Literal["namespaces", "none"]:
        return "none"

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncGenerator[ProcessSandbox]:
        """A folder for the length of an `async with`; see `SandboxPool.open`."""
        check_spec(spec)
        with self._lock:
            if self._is_closed:
                raise SandboxError("the sandbox pool is closed")
            sandbox = ProcessSandbox(spec, self._threads)
            self._open.add(sandbox)
        try:
            yield sandbox
        finally:
            self._open.discard(sandbox)
            await in_thread(self._threads, lambda cancel: sandbox.stop())

    def close(self) -> None:
        """End every command and remove every folder. Idempotent."""
        with self._lock:
            self._is_closed = True
            sandboxes = list(self._open)
        for sandbox in sandboxes:
            sandbox.stop()


def _kill_group(pid: int) -> None:
    # PermissionError: macOS says so of a group whose processes are all gone.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
