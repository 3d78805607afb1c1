"""Bytes in and out, bounded, for any sizes."""

import os
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environment.sandbox.pump import Capture, Pump


@given(st.integers(0, 50), st.lists(st.binary(max_size=20)))
def test_a_capture_keeps_the_head_and_counts_all(limit: int, chunks: list[bytes]) -> None:
    capture = Capture(limit)
    for chunk in chunks:
        capture.add(chunk)
    everything = b"".join(chunks)
    assert bytes(capture.head) == everything[:limit]
    assert capture.num_bytes == len(everything)
    assert capture.is_truncated == (len(everything) > limit)


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=300_000), st.integers(0, 300_000))
def test_an_echo_comes_back_up_to_the_cap(content: bytes, limit: int) -> None:
    pump = Pump(content, limit)
    near, out, err = (os.dup(fd) for fd in pump.far_ends)
    pump.close_far_ends()
    done, is_done = os.pipe()

    def echo() -> None:
        while chunk := os.read(near, 5000):
            os.write(out, chunk)
        for fd in (near, out, err, is_done):
            os.close(fd)

    thread = threading.Thread(target=echo)
    thread.start()
    assert pump.run_until([done], time.monotonic() + 10) == done
    pump.drain(time.monotonic() + 10)
    thread.join()
    os.close(done)
    pump.close()
    assert bytes(pump.stdout.head) == content[:limit]
    assert pump.stdout.num_bytes == len(content)


def test_the_deadline_and_a_signal_both_end_the_pumping() -> None:
    pump = Pump(b"", 10)
    reader, writer = os.pipe()
    try:
        assert pump.run_until([reader], time.monotonic() + 0.02) is None
        os.write(writer, b"!")
        assert pump.run_until([reader], time.monotonic() + 10) == reader
        assert pump.run_until([reader], time.monotonic() - 1) is None
    finally:
        pump.close()
        os.close(reader)
        os.close(writer)


def test_a_reader_that_is_gone_does_not_break_the_writer() -> None:
    pump = Pump(b"x" * 1_000_000, 10)
    pump.close_far_ends()
    pump.drain(time.monotonic() + 10)
    pump.close()
    assert pump.stdout.num_bytes == 0
