"""One group as one Parquet file: readable columns for people and SQL, exact blobs for us.

The only module that knows pyarrow. A row is a trajectory; `trajectory`, `verdict` and `task` hold
the msgpack of the whole object, and every other column is drawn from them for readers without us.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from practicum.errors import UsageError
from practicum.observe.codec import from_msgpack, little_endian, to_msgpack, without_surrogates
from practicum.types import Task, Trajectory
from practicum.verdicts import Group, Verdict

SEGMENT_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """What a list of trajectories shows of one; the store's index holds nothing else."""

    group_id: str
    trajectory_id: str
    task_id: str
    domain: str
    split: str
    sample: int
    outcome: str
    failure_kind: str | None
    stop_reason: str
    score: float | None
    reward: float | None
    verifier_name: str | None
    verifier_version: str | None
    verifier_digest: str | None
    version_min: int | None
    version_max: int | None
    num_tokens: int
    num_sampled: int


def encode_segment(group: Group) -> bytes:
    """The group as a Parquet file, zstd-compressed. Lone surrogates become U+FFFD."""
    assert group.trajectories, f"group {group.id} holds no trajectory"
    try:
        return _encode(group)
    except UnicodeEncodeError:
        return _encode(without_surrogates(group))


def decode_segment(data: bytes) -> Group:
    """The group, bit for bit. Raises UsageError for a format that this version does not read."""
    table = _read(data, ["group_id", "trajectory", "verdict", "task"])
    rows = cast("list[dict[str, Any]]", table.to_pylist())
    trajectories = [from_msgpack(row["trajectory"], Trajectory) for row in rows]
    verdicts = {
        trajectory.id: from_msgpack(row["verdict"], Verdict)
        for trajectory, row in zip(trajectories, rows)
        if row["verdict"] is not None
    }
    task = from_msgpack(rows[0]["task"], Task)
    return Group(rows[0]["group_id"], task, tuple(trajectories), verdicts)


def decode_rows(data: bytes) -> tuple[str, list[TrajectoryRow]]:
    """The content digest and the index rows, without decoding a single trajectory."""
    table = _read(data, [field.name for field in dataclasses.fields(TrajectoryRow)])
    digest = table.schema.metadata[b"practicum.content"].decode()
    return digest, [TrajectoryRow(**row) for row in table.to_pylist()]


def content_digest(group: Group) -> str:
    """sha256 of all that a repetition would repeat: everything but the seconds it took."""
    timeless = tuple(
        dataclasses.replace(
            trajectory,
            usage=dataclasses.replace(trajectory.usage, generate_s=0.0, verify_s=0.0),
        )
        for trajectory in group.trajectories
    )
    return hashlib.sha256(to_msgpack(dataclasses.replace(group, trajectories=timeless))).hexdigest()


def trajectory_row(group: Group, trajectory: Trajectory) -> TrajectoryRow:
    """The index row of one trajectory of a group."""
    verdict = group.verdicts.get(trajectory.id)
    sampled = [
        version
        for segment in trajectory.segments
        for version, mask in zip(segment.versions, segment.loss_mask)
        if mask
    ]
    return TrajectoryRow(
        group_id=group.id,
        trajectory_id=trajectory.id,
        task_id=trajectory.task_id,
        domain=group.task.domain,
        split=group.task.split,
        sample=trajectory.sample,
        outcome=str(trajectory.outcome),
        failure_kind=trajectory.failure.kind if trajectory.failure else None,
        stop_reason=str(trajectory.stop_reason),
        score=verdict.score if verdict else None,
        reward=verdict.reward if verdict else None,
        verifier_name=verdict.verifier.name if verdict else None,
        verifier_version=verdict.verifier.version if verdict else None,
        verifier_digest=verdict.verifier.digest if verdict else None,
        version_min=min(sampled, default=None),
        version_max=max(sampled, default=None),
        num_tokens=sum(len(segment) for segment in trajectory.segments),
        num_sampled=trajectory.num_trainable,
    )


def _encode(group: Group) -> bytes:
    pyarrow, parquet = _arrow()
    task = to_msgpack(group.task)
    rows = [_row(group, trajectory) | {"task": task} for trajectory in group.trajectories]
    metadata = {
        "practicum.format": str(SEGMENT_FORMAT),
        "practicum.group": group.id,
        "practicum.content": content_digest(group),
    }
    schema = _schema().with_metadata(metadata)
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), buffer, compression="zstd")
    return buffer.getvalue()


def _row(group: Group, trajectory: Trajectory) -> dict[str, Any]:
    verdict = group.verdicts.get(trajectory.id)
    readable = dataclasses.asdict(trajectory_row(group, trajectory))
    segments = trajectory.segments
    return readable | {
        "prompt": "\n\n".join(message.content for message in group.task.prompt),
        "response": trajectory.response,
        "segment_lengths": [len(segment) for segment in segments],
        "token_ids": b"".join(little_endian(segment.token_ids) for segment in segments),
        "loss_mask": b"".join(segment.loss_mask for segment in segments),
        "logprobs": b"".join(little_endian(segment.logprobs) for segment in segments),
        "versions": b"".join(little_endian(segment.versions) for segment in segments),
        "trajectory": to_msgpack(trajectory),
        "verdict": to_msgpack(verdict) if verdict else None,
    }


def _read(data: bytes, columns: list[str]) -> Any:
    _, parquet = _arrow()
    table = parquet.read_table(io.BytesIO(data), columns=columns)
    metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
    found = metadata.get(b"practicum.format", b"none").decode()
    if found != str(SEGMENT_FORMAT):
        raise UsageError(
            f"a trajectory segment has format {found}, this version reads {SEGMENT_FORMAT}; "
            "use the version of practicum that wrote it"
        )
    return table


@cache
def _arrow() -> tuple[Any, Any]:
    import pyarrow  # pyright: ignore[reportMissingTypeStubs]
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]

    return pyarrow, parquet


@cache
def _schema() -> Any:
    pyarrow, _ = _arrow()
    kinds = {"str": pyarrow.string(), "int": pyarrow.int64(), "float": pyarrow.float64()}
    readable = [
        (field.name, kinds[str(field.type).split(" ")[0]])
        for field in dataclasses.fields(TrajectoryRow)
    ]
    blobs = ["token_ids", "loss_mask", "logprobs", "versions", "trajectory", "verdict", "task"]
    return pyarrow.schema(
        [
            *readable,
            ("prompt", pyarrow.string()),
            ("response", pyarrow.string()),
            ("segment_lengths", pyarrow.list_(pyarrow.int64())),
            *[(name, pyarrow.binary()) for name in blobs],
        ]
    )
