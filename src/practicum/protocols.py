"""The seams: where the environment side and the policy side meet, and what a runtime can replace.

A protocol is satisfied, not inherited. Public fakes for all of them are in `practicum.testing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from practicum.sampling import Completion, Sampling
from practicum.types import Message, Task, Trajectory, WeightVersion
from practicum.verdicts import Group, Report, Verdict, VerifierId

Metrics = Mapping[str, float]
"""Named numbers of one step. Times end in `_s` and live under `time/`; everything else is
deterministic on CPU at `max_staleness = 0`."""


class Policy(Protocol):
    """The model being trained, as the environment side sees it: it owns tokens and generates."""

    @property
    def name(self) -> str:
        """How reports call it, such as `SmolLM2-135M-Instruct (from Q4_1)`."""
        ...

    @property
    def version(self) -> WeightVersion:
        """Version of the weights that the next token will be sampled from."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens, prompt and completion together, that the model can hold."""
        ...

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt that makes the policy speak next.

        One `text` message is rendered as it stands; anything else by the model's chat template.
        Raises UsageError if the messages mix both or the model has no template.
        """
        ...

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion. Concurrent calls are batched, and equal prompts share their work.

        Raises UsageError if prompt and `max_new_tokens` do not fit the context, or the prompt is
        empty; PolicyDead if the engine cannot go on.
        """
        ...


class Trainer(Protocol):
    """Turns scored trajectories into new weights. Blocking: the loop calls it in a thread."""

    @property
    def version(self) -> WeightVersion:
        """Number of published policies, 0 before the first update."""
        ...

    def update(
        self,
        policy: Policy,
        reference: Policy | None,
        trajectories: Sequence[Trajectory],
        rewards: Mapping[str, Verdict],
    ) -> Metrics:
        """One step: advantages within each `group_id`, all optimizer updates, publish once.

        `rewards` holds a verdict for exactly the trajectories that may be trained on, by id.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and counters into an existing empty folder. No pickle."""
        ...

    def load(self, folder: Path) -> None:
        """Continue exactly where `save` left off. Raises StoreError if the folder does not fit."""
        ...


class ExecOutcome(StrEnum):
    """How one command in a sandbox ended."""

    OK = "ok"
    NONZERO = "nonzero"
    TIMEOUT = "timeout"
    OOM = "oom"
    PIDS = "pids"
    DISK = "disk"
    OUTPUT_TRUNCATED = "output_truncated"
    SANDBOX_DEAD = "sandbox_dead"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox is made of. Sizes in MiB, times in seconds."""

    image: str = "host"
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Relative path -> text, written into the working directory before the first command."""
    cpus: float = 1.0
    memory_mb: int = 256
    storage_mb: int = 64
    pids: int = 32
    network: Literal["none", "loopback"] = "none"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/work"
    timeout_s: float = 60.0
    """Lifetime of the whole sandbox."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one command did. Output is always returned, also what came before a time-out."""

    outcome: ExecOutcome
    rc: int | None
    """Exit code, None if a signal ended the command."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_bytes: int
    """Bytes the command wrote, kept or not."""
    stderr_bytes: int
    wall_s: float
    cpu_s: float
    peak_memory_mb: float


class Sandbox(Protocol):
    """One isolated place to run commands of hostile origin."""

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
        """Run a command to its end. Never raises for what the command does.

        Raises SandboxError only if the sandbox itself is lost. Cancelling the caller kills the
        command and its whole tree.
        """
        ...

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Read a regular file, never following links out. Raises FileNotFoundError."""
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file."""
        ...


class SandboxPool(Protocol):
    """Makes sandboxes. `isolation` says how strong they are: `namespaces` or `none`."""

    @property
    def isolation(self) -> Literal["namespaces", "none"]: ...

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox for the length of an `async with`; closing kills everything in it.

        Raises SandboxError if it cannot be made, naming what is missing and how to enable it.
        """
        ...

    def close(self) -> None:
        """End every sandbox and helper process. Idempotent."""
        ...


class Verifier(Protocol):
    """Judges attempts of one domain. Never evaluates model text outside a sandbox."""

    @property
    def id(self) -> VerifierId: ...

    async def verify(self, task: Task, rollout: Trajectory, sandboxes: SandboxPool) -> Verdict:
        """What the attempt is worth.

        Raises GraderError if the verifier itself broke, InfraError if the machinery did; both
        leave the attempt unscored.
        """
        ...


class Curriculum(Protocol):
    """Decides what to practise next, and learns from reports."""

    def sample(self, slot: int) -> Task:
        """The task for this slot. Deterministic in (seed, slot, reports seen so far)."""
        ...

    def observe(self, report: Report) -> None: ...

    def state(self) -> dict[str, Any]:
        """JSON-able; `restore(state())` continues exactly."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Store(Protocol):
    """Keeps every trajectory, and the ledger of which step consumed which group."""

    def append(self, group: Group) -> None:
        """Durable on return. Writing the same group twice is not an error and counts once."""
        ...

    def commit(self, step: int, group_ids: Sequence[str]) -> None:
        """What this step trained on. Raises StoreError if another step trained a group before."""
        ...


class Sink(Protocol):
    """Takes the numbers of each step: a file, a live table, a tracker."""

    def log(self, step: int, metrics: Metrics) -> None: ...
