"""Messages arrive whole or not at all, whatever the other side sends."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environment.sandbox.zygote import wire


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        ours.settimeout(5.0)
        yield ours, theirs


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dictionaries(st.text(), JSON, max_size=5), max_size=5))
def test_messages_arrive_as_they_were_sent(messages: list[dict[str, object]]) -> None:
    with pair() as (ours, theirs):
        for message in messages:
            wire.send(theirs, message)
        for message in messages:
            assert wire.receive(ours, max_bytes=1 << 20) == (message, [])


def test_a_large_message_arrives_in_pieces() -> None:
    message = {"argv": ["x" * 3_000_000, "\udcff"]}
    with pair() as (ours, theirs):
        sender = threading.Thread(target=wire.send, args=(theirs, message))
        sender.start()
        assert wire.receive(ours, max_bytes=wire.MAX_REQUEST)[0] == message
        sender.join()


def test_descriptors_come_along_and_are_not_inherited() -> None:
    reader, writer = os.pipe()
    with pair() as (ours, theirs):
        wire.send(theirs, {"with": "fd"}, [writer])
        os.close(writer)
        message, (received,) = wire.receive(ours, max_bytes=100, max_fds=1)
    assert message == {"with": "fd"}
    assert not os.get_inheritable(received)
    os.write(received, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(received)
    os.close(reader)


@pytest.mark.parametrize("expected", [0, 1])
def test_unexpected_descriptors_are_refused_and_closed(expected: int) -> None:
    reader, writer = os.pipe()
    with pair() as (ours, theirs):
        wire.send(theirs, {}, [writer] * (expected + 1))
        os.close(writer)
        with pytest.raises(wire.WireError, match="descriptors"):
            wire.receive(ours, max_bytes=100, max_fds=expected)
    assert os.read(reader, 1) == b"", "somebody still holds the writing end"
    os.close(reader)


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{", b"\xff", b"[" * 60_000, b'{"a":1}garbage', b"NaN"]
)
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    with pair() as (ours, theirs):
        theirs.sendall(wire.HEADER.pack(len(body)) + body)
        with pytest.raises(wire.WireError):
            wire.receive(ours, max_bytes=wire.MAX_REPLY)


def test_a_long_message_is_refused_before_it_is_read() -> None:
    with pair() as (ours, theirs):
        theirs.sendall(wire.HEADER.pack(1 << 30))
        with pytest.raises(wire.WireError, match="more than"):
            wire.receive(ours, max_bytes=wire.MAX_REPLY)


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_message_or_one_of_two_errors(noise: bytes) -> None:
    with pair() as (ours, theirs):
        theirs.sendall(noise)
        theirs.close()
        with contextlib.suppress(EOFError, wire.WireError):
            message, _ = wire.receive(ours, max_bytes=wire.MAX_REPLY)
            assert json.loads(noise[4 : 4 + int.from_bytes(noise[:4])]) == message


def test_half_a_message_is_not_waited_for_forever() -> None:
    with pair() as (ours, theirs):
        ours.settimeout(0.05)
        theirs.sendall(b"\0\0")
        with pytest.raises(wire.WireError, match="silence"):
            wire.receive(ours, max_bytes=10)


def test_the_end_of_the_other_side_is_an_end() -> None:
    with pair() as (ours, theirs):
        theirs.close()
        with pytest.raises(EOFError):
            wire.receive(ours, max_bytes=10)
