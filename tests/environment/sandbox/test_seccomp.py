"""The filter, run by a small BPF machine of our own, for both processors."""

import errno
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.environment.sandbox.zygote import seccomp

MACHINES = ("x86_64", "aarch64")
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOW, KILL = "allow", "kill"


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> str | int:
    """What the kernel would do with a call: allow, kill, or an errno."""
    arch = seccomp.AUDIT_ARCH[machine] if arch is None else arch
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, arch, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", seccomp.assemble(machine)))
    position = accumulator = 0
    while True:
        operation, if_true, if_false, constant = code[position]
        position += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, constant)
            case 0x15:
                position += if_true if accumulator == constant else if_false
            case 0x35:
                position += if_true if accumulator >= constant else if_false
            case 0x45:
                position += if_true if accumulator & constant else if_false
            case 0x06:
                action = constant & 0xFFFF_0000
                known = {0x7FFF_0000: ALLOW, 0x8000_0000: KILL, 0x0005_0000: constant & 0xFFFF}
                return known[action]
            case _:
                raise AssertionError(f"operation {operation:#x}")


def number_of(machine: str, name: str) -> int | None:
    return seccomp.DENIED[name][MACHINES.index(machine)]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_tables_agree_with_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"no {HEADERS[machine]} here")
    defined = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    numbers = {name: int(number) for name, number in reversed(defined)}
    column = MACHINES.index(machine)
    ours = {**seccomp.DENIED, **seccomp.INSPECTED}
    assert {name: row[column] for name, row in ours.items()} == {
        name: numbers.get(name) for name in ours
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_every_denied_call_is_refused_whatever_its_arguments(machine: str) -> None:
    for name in seccomp.DENIED:
        number = number_of(machine, name)
        if number is not None:
            assert verdict(machine, number, 1, 2, 3) == errno.EPERM, name


@pytest.mark.parametrize("machine", MACHINES)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_every_other_known_call_is_allowed_and_no_unknown_one(
    machine: str, number: int, argument: int
) -> None:
    column = MACHINES.index(machine)
    listed = {row[column] for row in (*seccomp.DENIED.values(), *seccomp.INSPECTED.values())}
    if number >= seccomp.FIRST_UNKNOWN or number == seccomp.CLONE3:
        assert verdict(machine, number, argument) == errno.ENOSYS
    elif number not in listed:
        assert verdict(machine, number, argument) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_kill(machine: str) -> None:
    i386 = 0x4000_0003
    assert verdict(machine, 1, arch=i386) == KILL


def test_the_x32_calls_do_not_exist() -> None:
    x32 = 0x4000_0000
    assert verdict("x86_64", x32 | 101) == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_where_they_must(machine: str) -> None:
    column = MACHINES.index(machine)
    clone, prlimit, ioctl, sock, pair = (row[column] for row in seccomp.INSPECTED.values())
    high = 1 << 40
    thread_flags, new_user, new_net = 0x3D0F00, 0x1000_0000, 0x4000_0000
    assert verdict(machine, clone, thread_flags) == ALLOW
    for flags in (new_user, new_net | 17, new_user | high):
        assert verdict(machine, clone, flags) == errno.EPERM
    assert verdict(machine, prlimit, 0, 7) == ALLOW
    assert verdict(machine, prlimit, 1, 7) == errno.EPERM
    assert verdict(machine, ioctl, 0, 0x5401) == ALLOW
    assert verdict(machine, ioctl, 0, 0x5412 | high) == errno.EPERM
    for call in (sock, pair):
        assert verdict(machine, call, 1) == ALLOW
        for family in (17, 38, 40):
            assert verdict(machine, call, family) == errno.EAFNOSUPPORT


def test_an_unknown_processor_has_no_filter() -> None:
    with pytest.raises(KeyError):
        seccomp.assemble("riscv64")
