"""Round trips of everything the store keeps, by property; arrays compare by their bytes."""

from __future__ import annotations

import dataclasses
import math
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.observe.codec import from_json, from_msgpack, to_json, to_msgpack
from practicum.types import (
    Environment,
    Failure,
    Message,
    Outcome,
    Segment,
    StopReason,
    Task,
    Trajectory,
    Usage,
)
from practicum.verdicts import Group, Verdict, VerifierId, Violation

text = st.text(max_size=40)  # hypothesis leaves lone surrogates out; they have their own test
float32 = st.floats(width=32)
int32 = st.integers(-(2**31), 2**31 - 1)
unit = st.floats(0, 1)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    n = draw(st.integers(0, 6))
    column = lambda element: draw(st.lists(element, min_size=n, max_size=n))  # noqa: E731
    return Segment(
        array("i", column(int32)),
        bytes(column(st.integers(0, 1))),
        array("f", column(float32)),
        array("i", column(int32)),
    )


environments = st.builds(
    Environment, image=text, files=st.dictionaries(text, text, max_size=2), network=st.booleans()
)
messages = st.builds(
    Message, st.sampled_from(["system", "user", "assistant", "tool", "text"]), text
)
tasks = st.builds(
    Task.create,
    domain=text,
    prompt=st.lists(messages, min_size=1, max_size=3).map(tuple),
    answer=text,
    difficulty=unit,
    split=st.sampled_from(["train", "eval"]),
    environment=st.one_of(st.none(), environments),
    metadata=st.dictionaries(text, text, max_size=2),
)
trajectories = st.builds(
    Trajectory,
    id=text,
    group_id=text,
    task_id=text,
    sample=st.integers(0, 99),
    messages=st.lists(messages, max_size=3).map(tuple),
    segments=st.lists(segments(), max_size=3).map(tuple),
    stop_reason=st.sampled_from(StopReason),
    outcome=st.sampled_from(Outcome),
    failure=st.one_of(st.none(), st.builds(Failure, text, text, text)),
    usage=st.builds(Usage, int32, int32, int32, st.floats(0, 1e6), st.floats(0, 1e6)),
)
verdicts = st.builds(
    Verdict,
    score=unit,
    verifier=st.builds(VerifierId, text, text, text),
    violations=st.lists(st.builds(Violation, text, unit, text), max_size=2).map(tuple),
    parts=st.dictionaries(text, st.floats(allow_nan=False, allow_infinity=False), max_size=2),
    evidence=text,
    unscorable=st.one_of(st.none(), text),
)


def columns(trajectory: Trajectory) -> list[tuple[bytes, ...]]:
    return [
        (s.token_ids.tobytes(), s.loss_mask, s.logprobs.tobytes(), s.versions.tobytes())
        for s in trajectory.segments
    ]


@pytest.mark.parametrize(("encode", "decode"), [(to_msgpack, from_msgpack), (to_json, from_json)])
def test_a_trajectory_survives_to_the_bit(encode: Any, decode: Any) -> None:
    @given(trajectories)
    def survives(trajectory: Trajectory) -> None:
        copy = decode(encode(trajectory), Trajectory)
        assert columns(copy) == columns(trajectory)
        assert dataclasses.replace(copy, segments=()) == dataclasses.replace(
            trajectory, segments=()
        )

    survives()


@given(tasks, verdicts)
def test_tasks_and_verdicts_survive(task: Task, verdict: Verdict) -> None:
    assert from_msgpack(to_msgpack(task), Task) == task == from_json(to_json(task), Task)
    assert from_msgpack(to_msgpack(verdict), Verdict) == verdict
    assert from_json(to_json(verdict), Verdict) == verdict


@given(tasks, st.lists(trajectories, max_size=3, unique_by=lambda t: t.id), verdicts)
def test_groups_survive(task: Task, attempts: list[Trajectory], verdict: Verdict) -> None:
    judged = {t.id: verdict for t in attempts if t.outcome.counts}
    group = Group("g", task, tuple(attempts), judged)
    copy = from_msgpack(to_msgpack(group), Group)
    assert copy.verdicts == group.verdicts
    assert [columns(t) for t in copy.trajectories] == [columns(t) for t in attempts]


def test_no_field_is_forgotten() -> None:
    """The wire types repeat two dataclasses; a field added to those must be added here."""
    from practicum.observe import codec

    for kind, wire in [
        (Segment, codec._Segment),
        (Trajectory, codec._Trajectory),
        (Group, codec._Group),
    ]:
        assert [f.name for f in dataclasses.fields(kind)] == list(wire.__struct_fields__)


def test_nan_and_infinity_survive_json_too() -> None:
    segment = Segment.of([1], [2, 3], [math.nan, -math.inf], [0, 0])
    trajectory = Trajectory("t", "g", "k", 0, (), (segment,), StopReason.EOS, Outcome.CANCELLED)
    copy = from_json(to_json(trajectory), Trajectory)
    assert columns(copy) == columns(trajectory)


def test_lone_surrogates_are_replaced_instead_of_losing_the_trajectory() -> None:
    message = Message("assistant", "a\ud800b 😀")
    trajectory = Trajectory("t", "g", "k", 0, (message,), (), StopReason.EOS, Outcome.CANCELLED)
    for copy in (
        from_msgpack(to_msgpack(trajectory), Trajectory),
        from_json(to_json(trajectory), Trajectory),
    ):
        assert copy.response == "a\ufffdb 😀"


def test_malformed_bytes_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        from_msgpack(b"\xc1", Task)
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        from_json(b"{}", Trajectory)
