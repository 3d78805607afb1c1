"""The nouns of Practicum: read them and you know the system. Standard library only, all frozen.

The path of one attempt: a `Task` is sampled, and the policy rolls out a `Trajectory` (messages for
people and verifiers, `Segment`s of tokens for the trainer). What attempts were worth is in
`verdicts.py`.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NewType

WeightVersion = NewType("WeightVersion", int)
"""Number of *published* policies. A step publishes once; staleness is a subtraction."""

Role = Literal["system", "user", "assistant", "tool", "text"]
"""Who speaks. `text` is a bare prompt, rendered as it stands instead of by the chat template."""

Split = Literal["train", "eval"]


class Outcome(StrEnum):
    """How an attempt ended; exactly one each. It drives mask, baseline and denominator alike."""

    SCORED = "scored"
    """The verifier looked at it and gave a score."""
    MODEL_FAILURE = "model_failure"
    """The policy's own fault (time-out, overflow): score 0, with a named reason."""
    INFRA_FAILURE = "infra_failure"
    """Engine, sandbox host or disk failed: never reaches an advantage."""
    GRADER_FAILURE = "grader_failure"
    """The verifier broke: never reaches an advantage."""
    CANCELLED = "cancelled"
    """Stopped from outside (shutdown, staleness)."""

    @property
    def counts(self) -> bool:
        """Whether the attempt enters an advantage and the scored-only accuracy."""
        return self in (Outcome.SCORED, Outcome.MODEL_FAILURE)


class StopReason(StrEnum):
    """Why generation of one completion, or a whole trajectory, ended."""

    EOS = "eos"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT_END = "context_end"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Message:
    """One utterance in message space: what people, tools and verifiers see.

    Example:
        Message("user", "What is 2+3?")
    """

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Environment:
    """What a task needs around it: files and limits. None on a task means: no sandbox."""

    image: str = "host"
    """Name of the root file system; `host` shows the machine's own system folders read-only."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path relative to the working directory -> text, present when the attempt starts."""
    network: bool = False
    time_limit_s: float = 10.0
    """Wall-clock seconds for one command."""
    memory_mb: int = 256


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do, with what is needed to judge it. The same content always has the same id.

    Example:
        Task.create(domain="addition", prompt=(Message("text", "3+4="),), answer="7",
                    difficulty=0.0, split="train")
    """

    id: str
    """Hash of domain, prompt, environment and answer."""
    domain: str
    prompt: tuple[Message, ...]
    answer: str
    """What the verifier compares with (plain text, or JSON where a domain needs structure).
    Never rendered, never uploaded before verification."""
    difficulty: float
    """In [0, 1], as the domain's author sees it; measured difficulty lives in the curriculum."""
    split: Split
    environment: Environment | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def create(
        *,
        domain: str,
        prompt: tuple[Message, ...],
        answer: str,
        difficulty: float,
        split: Split,
        environment: Environment | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Task:
        """Make a task and compute its id.

        Raises ValueError for an empty prompt or a difficulty outside [0, 1].
        """
        if not prompt:
            raise ValueError(f"task of domain {domain!r} has no prompt")
        if not 0.0 <= difficulty <= 1.0:
            raise ValueError(f"difficulty {difficulty} of a task of {domain!r} is outside [0, 1]")
        content = {
            "domain": domain,
            "prompt": [[message.role, message.content] for message in prompt],
            "answer": answer,
            "image": environment.image if environment else None,
            "files": dict(sorted(environment.files.items())) if environment else None,
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return Task(
            id=digest[:16],
            domain=domain,
            prompt=prompt,
            answer=answer,
            difficulty=difficulty,
            split=split,
            environment=environment,
            metadata=metadata or {},
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """One append-only run of tokens as the model saw and sampled them. Nothing is re-tokenised.

    All columns have equal length; at positions that were not sampled, mask and log-prob hold 0.

    Example:
        prompt "3+4=" (4 tokens) and the sampled "7\\n" (2 tokens) give
        loss_mask [0,0,0,0,1,1], logprobs [0,0,0,0,-0.3,-0.1], versions [0,0,0,0,12,12].
    """

    token_ids: array[int]
    """int32, [num_tokens]"""
    loss_mask: bytes
    """1 where this policy sampled the token, else 0; [num_tokens]"""
    logprobs: array[float]
    """float32, natural log at the sampling temperature before truncation; [num_tokens]"""
    versions: array[int]
    """int32, weight version that sampled the token; [num_tokens]"""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.logprobs), len(self.versions)}
        assert len(lengths) == 1, f"segment columns differ in length: {sorted(lengths)}"

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_trainable(self) -> int:
        return sum(self.loss_mask)

    @staticmethod
    def of(
        prompt_ids: Sequence[int],
        sampled_ids: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
    ) -> Segment:
        """A segment of one prompt and the tokens sampled after it."""
        num_prompt = len(prompt_ids)
        return Segment(
            token_ids=array("i", [*prompt_ids, *sampled_ids]),
            loss_mask=bytes(num_prompt) + b"\x01" * len(sampled_ids),
            logprobs=array("f", [0.0] * num_prompt + list(logprobs)),
            versions=array("i", [0] * num_prompt + list(versions)),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt was not simply scored.

    Example:
        Failure(kind="time_limit", message="command ran longer than 10 s", where="sandbox.exec")
    """

    kind: str
    """A stable, low-cardinality name: it becomes a column in reports."""
    message: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt cost."""

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    turns: int = 0
    generate_s: float = 0.0
    verify_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt at a task, errors and recoveries included.

    Its id is made of slot and sample: a resumed run that repeats the attempt writes the same id, so
    that the store can drop the copy.
    """

    id: str
    group_id: str
    """The attempts that share a baseline; equal to `Group.id`."""
    task_id: str
    sample: int
    """Index within the group, 0 .. group_size - 1."""
    messages: tuple[Message, ...]
    segments: tuple[Segment, ...]
    stop_reason: StopReason
    outcome: Outcome
    failure: Failure | None = None
    usage: Usage = Usage()

    @property
    def response(self) -> str:
        """The last thing the policy said; empty if it said nothing."""
        for message in reversed(self.messages):
            if message.role == "assistant":
                return message.content
        return ""

    @property
    def num_trainable(self) -> int:
        return sum(segment.num_trainable for segment in self.segments)

    @property
    def oldest_version(self) -> WeightVersion | None:
        """Version of the oldest sampled token, None if nothing was sampled."""
        sampled = [
            version
            for segment in self.segments
            for version, mask in zip(segment.versions, segment.loss_mask)
            if mask
        ]
        return WeightVersion(min(sampled)) if sampled else None
