"""The seams: where the environment side and the policy side meet, and what a runtime can replace.

A protocol is satisfied, not inherited. Public fakes for all of them are in `practicum.testing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

from practicum.types import (
    Group,
    Message,
    Report,
    StopReason,
    Task,
    Trajectory,
    Verdict,
    VerifierId,
    WeightVersion,
)

Metrics = Mapping[str, float]
"""Named numbers of one step. Times end in `_s` and live under `time/`; everything else is
deterministic on CPU at `max_staleness = 0`."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that a completion must belong to; other tokens are never sampled."""

    kind: Literal["json_schema", "regex", "choice"]
    text: str
    """A JSON schema, a regular expression that the whole completion matches, or a JSON list of
    strings of which it is one."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one completion is sampled. The same seed gives the same tokens in any batch.

    The distribution is built in this order: penalties and bias on the logits, the constraint, the
    temperature, then `top_k`, `top_p` and `min_p`, each on what the one before left.
    """

    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy; the log-prob is then that of temperature 1."""
    stop: tuple[str, ...] = ()
    """Generation ends once the text contains one of these; the text is cut before it, the tokens
    that completed it are kept and trained on (the policy must learn to stop)."""
    seed: int = 0
    top_k: int = 0
    """Only the k likeliest tokens; 0 for all."""
    top_p: float = 1.0
    """Only the fewest likeliest tokens that hold this much probability."""
    min_p: float = 0.0
    """Only tokens at least this likely relative to the likeliest."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or completion."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token of the completion."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that it is in the completion."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    stop_token_ids: tuple[int, ...] = ()
    """End the completion like the model's own ends of text."""
    ignore_eos: bool = False
    """Go on after the model's ends of text; for benchmarks."""
    constraint: Constraint | None = None
    top_logprobs: int = 0
    """How many of the likeliest tokens to report beside each sampled one."""

    def __post_init__(self) -> None:
        def demand(ok: bool, name: str, wanted: str) -> None:
            if not ok:
                raise ValueError(f"{name} must be {wanted}, not {getattr(self, name)}")

        demand(self.max_new_tokens >= 1, "max_new_tokens", "at least 1")
        demand(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", ">= 0")
        demand(self.top_k >= 0, "top_k", "at least 1, or 0 for all")
        demand(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        demand(0 <= self.min_p <= 1, "min_p", "between 0 and 1")
        demand(0 < self.repetition_penalty < math.inf, "repetition_penalty", "finite and above 0")
        demand(math.isfinite(self.presence_penalty), "presence_penalty", "finite")
        demand(math.isfinite(self.frequency_penalty), "frequency_penalty", "finite")
        demand(not any(math.isnan(b) for _, b in self.logit_bias), "logit_bias", "without NaN")
        demand(0 <= self.top_logprobs <= 20, "top_logprobs", "between 0 and 20")


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns: exactly the sampled tokens and what is known of each."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log at the sampling temperature before truncation, one per token."""
    versions: tuple[int, ...]
    """Weight version that sampled each token."""
    text: str
    """Decoded, without EOS and without the stop string."""
    stop_reason: StopReason
    log_kept_mass: tuple[float, ...] = ()
    """Natural log of the probability that top-k, top-p and min-p kept, one per token (0 where
    nothing was cut; empty if nothing ever was): `logprob - log_kept_mass` is the log-prob after
    truncation."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each token the likeliest (token id, log-prob), as many as were asked for."""
    reused_tokens: int = field(default=0, compare=False)
    """Prompt tokens whose keys and values were there already; says nothing of the answer."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What was added to a completion. All deltas of a stream, joined, are the completion.

    Text may lag behind the tokens: a character whose bytes are not all there yet, or what could be
    the beginning of a stop string, comes with a later delta.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    """Never holds a broken character, never a part of a stop string."""
    logprobs: tuple[float, ...] = ()
    """One per token, as in `Completion`."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    stop_reason: StopReason | None = None
    """On the last delta of a stream, and on no other."""
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were there already; known from the first delta on."""

    @staticmethod
    def joined(deltas: Iterable[Delta]) -> Delta:
        """All of them as one.

        Example:
            Delta.joined([Delta((7,), "a"), Delta((8,), "b")]) == Delta((7, 8), "ab")
        """
        deltas = list(deltas)
        return Delta(
            token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
            text="".join(delta.text for delta in deltas),
            logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
            top_logprobs=tuple(chain.from_iterable(delta.top_logprobs for delta in deltas)),
            stop_reason=next((d.stop_reason for d in deltas if d.stop_reason is not None), None),
            reused_tokens=max((delta.reused_tokens for delta in deltas), default=0),
        )


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
