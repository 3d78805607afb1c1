"""A sandbox that runs nothing: a test scripts what each command returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from practicum.protocols import ExecOutcome, ExecResult, SandboxSpec

Command = Callable[[Sequence[str], bytes], ExecResult]
"""argv and stdin -> result."""


def exec_result(
    stdout: bytes = b"", *, rc: int = 0, outcome: ExecOutcome | None = None
) -> ExecResult:
    """A result with everything else at rest."""
    return ExecResult(
        outcome=outcome or (ExecOutcome.OK if rc == 0 else ExecOutcome.NONZERO),
        rc=rc,
        signal=None,
        stdout=stdout,
        stderr=b"",
        stdout_truncated=False,
        stderr_truncated=False,
        stdout_bytes=len(stdout),
        stderr_bytes=0,
        wall_s=0.0,
        cpu_s=0.0,
        peak_memory_mb=0.0,
    )


class FakeSandbox:
    """Satisfies `practicum.protocols.Sandbox` with files in a dictionary."""

    def __init__(self, command: Command, files: Mapping[str, str]) -> None:
        self.command = command
        self.files = {path: text.encode() for path, text in files.items()}

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
        return self.command(argv, stdin)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        try:
            return self.files[path][:max_bytes]
        except KeyError:
            raise FileNotFoundError(path) from None

    async def write_file(self, path: str, content: bytes) -> None:
        self.files[path] = content


class FakeSandboxPool:
    """Satisfies `practicum.protocols.SandboxPool`."""

    isolation: Literal["namespaces", "none"] = "none"

    def __init__(self, command: Command = lambda argv, stdin: exec_result()) -> None:
        self.command = command
        self.num_opened = 0

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncGenerator[FakeSandbox]:
        self.num_opened += 1
        yield FakeSandbox(self.command, spec.files)

    def close(self) -> None:
        pass
