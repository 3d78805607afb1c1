"""One sandbox's hunger is its own problem."""

import asyncio

import pytest

from practicum.environment.sandbox import capabilities
from practicum.environment.sandbox.local import LocalSandboxPool
from practicum.protocols import ExecOutcome, SandboxSpec

FORK_BOMB = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError as error:
        print(error.strerror)
        raise SystemExit(1)
"""


def needs_hard(resource: str) -> None:
    limit = capabilities().limits[resource]
    if limit.strength != "hard" or "control group" not in limit.how:
        pytest.skip(f"the limit on {resource} is {limit.strength} here: {limit.how}")


async def test_a_memory_hog_is_killed_and_its_neighbour_is_not(pool: LocalSandboxPool) -> None:
    needs_hard("memory")
    async with pool.open(SandboxSpec(memory_mb=48)) as hog, pool.open(SandboxSpec()) as neighbour:
        working = asyncio.ensure_future(neighbour.exec(["sh", "-c", "sleep 0.5; echo unharmed"]))
        eaten = await hog.exec(["python3", "-c", "x = bytearray(1 << 30)"])
        assert (eaten.outcome, eaten.rc, eaten.signal) == (ExecOutcome.OOM, None, 9)
        assert 30 < eaten.peak_memory_mb <= 49
        assert (await working).stdout == b"unharmed\n"
        again = await hog.exec(["echo", "the sandbox itself lives"])
        assert again.outcome is ExecOutcome.OK
        assert again.peak_memory_mb < 30


async def test_memory_counts_over_all_processes(pool: LocalSandboxPool) -> None:
    needs_hard("memory")
    one = "python3 -c 'import time; x = bytearray(40 << 20); time.sleep(1)'"
    async with pool.open(SandboxSpec(memory_mb=64)) as sandbox:
        result = await sandbox.exec(["bash", "-c", f"{one} & {one} & wait -n; wait -n; true"])
    assert result.outcome is ExecOutcome.OOM


async def test_a_hog_that_is_survived_is_still_told(pool: LocalSandboxPool) -> None:
    needs_hard("memory")
    async with pool.open(SandboxSpec(memory_mb=48)) as sandbox:
        result = await sandbox.exec(["sh", "-c", "python3 -c 'bytearray(1 << 30)'; echo went on"])
    assert result.outcome is ExecOutcome.OOM
    assert (result.rc, result.stdout) == (0, b"went on\n")


async def test_a_fork_bomb_is_held(pool: LocalSandboxPool) -> None:
    async with pool.open(SandboxSpec(pids=20)) as sandbox:
        result = await sandbox.exec(["python3", "-c", FORK_BOMB], max_output=10_000)
        assert result.stdout.count(b"temporarily unavailable") == 1
        if "control group" in capabilities().limits["processes"].how:
            assert result.outcome is ExecOutcome.PIDS
        assert (await sandbox.exec(["sh", "-c", "echo $(echo fine)"])).stdout == b"fine\n"


async def test_a_shell_fork_bomb_ends_with_its_time(pool: LocalSandboxPool) -> None:
    async with pool.open(SandboxSpec(pids=32)) as sandbox:
        bomb = await sandbox.exec(["bash", "-c", ":(){ :|:& };:; sleep 30"], timeout_s=1.0)
        assert bomb.outcome is ExecOutcome.TIMEOUT
        assert bomb.wall_s < 8
        assert (await sandbox.exec(["true"])).rc == 0


async def test_a_full_disk_is_no_space_and_no_harm(pool: LocalSandboxPool) -> None:
    async with pool.open(SandboxSpec(storage_mb=8)) as sandbox:
        full = await sandbox.exec(["sh", "-c", "head -c 20000000 /dev/zero > big"])
        assert full.outcome is ExecOutcome.DISK
        assert b"No space left" in full.stderr
        assert len(await sandbox.read_file("big", max_bytes=1 << 30)) <= 8 << 20
        elsewhere = await sandbox.exec(["sh", "-c", "echo more > /dev/shm/more"])
        assert elsewhere.outcome is ExecOutcome.DISK
        await sandbox.exec(["rm", "big"])
        assert (await sandbox.exec(["sh", "-c", "echo more > more"])).outcome is ExecOutcome.OK


async def test_the_number_of_files_is_limited_too(pool: LocalSandboxPool) -> None:
    program = "for i in range(10**6): open(f'/tmp/{i}', 'w').close()"
    async with pool.open(SandboxSpec(storage_mb=4)) as sandbox:
        result = await sandbox.exec(["python3", "-c", program])
    assert result.outcome is ExecOutcome.DISK
    assert b"No space left" in result.stderr


async def test_half_a_cpu_is_half_a_cpu(pool: LocalSandboxPool) -> None:
    needs_hard("cpu")
    async with pool.open(SandboxSpec(cpus=0.5)) as sandbox:
        result = await sandbox.exec(["sh", "-c", "while :; do :; done"], timeout_s=1.0)
    assert result.outcome is ExecOutcome.TIMEOUT
    assert 0.02 < result.cpu_s < 0.75


async def test_cpu_time_of_processes_left_behind_is_counted(pool: LocalSandboxPool) -> None:
    spin = "import time\nwhile time.process_time() < 0.2: pass"
    async with pool.open(SandboxSpec(cpus=2.0)) as sandbox:
        script = '(setsid python3 -c "$0" &); sleep 0.6'
        result = await sandbox.exec(["sh", "-c", script, spin])
    assert result.cpu_s >= 0.2


async def test_core_files_and_open_files_are_bounded(pool: LocalSandboxPool) -> None:
    async with pool.open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(["sh", "-c", "ulimit -c; ulimit -n; ulimit -Hn"])
    core, soft, hard = (int(word) for word in result.stdout.split())
    assert core == 0
    assert 0 < soft <= hard <= 1024
