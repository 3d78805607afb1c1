"""Trajectories, verdicts, tasks and groups as msgpack or JSON, exact to the last bit of a float32.

Arrays travel as little-endian bytes (base64 in JSON), so that NaN and infinity survive as well.
What is read is checked against the types; nothing read is ever executed.
"""

from __future__ import annotations

import dataclasses
import sys
from array import array
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from practicum.types import Failure, Message, Outcome, Segment, StopReason, Task, Trajectory, Usage
from practicum.verdicts import Group, Verdict

T = TypeVar("T", Task, Trajectory, Verdict, Group)


# `array[int]` cannot be evaluated as a type before Python 3.12, so msgspec cannot read Segment's
# annotations; these three say the same in words it knows. Encoding needs no annotations.
class _Segment(msgspec.Struct):
    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    versions: bytes


class _Trajectory(msgspec.Struct):
    id: str
    group_id: str
    task_id: str
    sample: int
    messages: tuple[Message, ...]
    segments: tuple[_Segment, ...]
    stop_reason: StopReason
    outcome: Outcome
    failure: Failure | None
    usage: Usage


class _Group(msgspec.Struct):
    id: str
    task: Task
    trajectories: tuple[_Trajectory, ...]
    verdicts: dict[str, Verdict]


_WIRE: Mapping[type, Any] = {
    Task: Task,
    Verdict: Verdict,
    Trajectory: _Trajectory,
    Group: _Group,
}


def to_msgpack(value: Task | Trajectory | Verdict | Group) -> bytes:
    """Encode for the store. Lone surrogates, which UTF-8 cannot hold, become U+FFFD."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=_array_to_bytes)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(without_surrogates(value), enc_hook=_array_to_bytes)


def from_msgpack(data: bytes, kind: type[T]) -> T:
    """Decode. Raises ValueError (msgspec's) if the bytes are not a well-formed `kind`."""
    wire = msgspec.msgpack.decode(data, type=_WIRE[kind])
    return cast(T, _from_wire(wire))


def to_json(value: Task | Trajectory | Verdict | Group) -> bytes:
    """Encode for people and other programs."""
    try:
        return msgspec.json.encode(value, enc_hook=_array_to_bytes)
    except UnicodeEncodeError:
        return msgspec.json.encode(without_surrogates(value), enc_hook=_array_to_bytes)


def from_json(data: bytes, kind: type[T]) -> T:
    """Decode. Raises ValueError (msgspec's) if the bytes are not a well-formed `kind`."""
    wire = msgspec.json.decode(data, type=_WIRE[kind])
    return cast(T, _from_wire(wire))


def without_surrogates(value: Any) -> Any:
    """The same value with every lone surrogate in every string replaced by U+FFFD."""
    if isinstance(value, str):
        return type(value)(value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    if isinstance(value, tuple):
        return tuple(without_surrogates(item) for item in cast("tuple[Any, ...]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {without_surrogates(key): without_surrogates(item) for key, item in items}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(
            value, **{name: without_surrogates(getattr(value, name)) for name in names}
        )
    return value


def little_endian(column: array[int] | array[float]) -> bytes:
    """The bytes of a column, the same on every machine."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _array_to_bytes(value: Any) -> bytes:
    if isinstance(value, array):
        return little_endian(cast("array[int]", value))
    raise NotImplementedError(f"{type(value).__name__} is not part of the format")


def _column(typecode: str, data: bytes) -> array[Any]:
    column: array[Any] = array(typecode)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _from_wire(wire: Any) -> Task | Trajectory | Verdict | Group:
    if isinstance(wire, _Trajectory):
        return _trajectory(wire)
    if isinstance(wire, _Group):
        attempts = tuple(_trajectory(trajectory) for trajectory in wire.trajectories)
        return Group(wire.id, wire.task, attempts, wire.verdicts)
    return wire


def _trajectory(wire: _Trajectory) -> Trajectory:
    fields = {name: getattr(wire, name) for name in wire.__struct_fields__}
    fields["segments"] = tuple(_segment(segment) for segment in wire.segments)
    return Trajectory(**fields)


def _segment(wire: _Segment) -> Segment:
    return Segment(
        token_ids=_column("i", wire.token_ids),
        loss_mask=wire.loss_mask,
        logprobs=_column("f", wire.logprobs),
        versions=_column("i", wire.versions),
    )
