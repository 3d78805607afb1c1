"""Every way in which things end, and that nothing is left of them."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from practicum.environment.sandbox import capabilities
from practicum.environment.sandbox.local import LocalSandboxPool
from practicum.errors import SandboxError
from practicum.protocols import ExecOutcome, ExecResult, Sandbox, SandboxSpec

from .processes import children_of, is_running, until, with_argument

SPEC = SandboxSpec(timeout_s=120.0)

# Five ways of not dying: a child, a new session, a double fork, ignoring every signal, stopped.
STUBBORN = """
sleep "$1" &
setsid sleep "$1" &
(setsid sh -c 'sleep "$1" & ' sh "$1" &)
(trap '' TERM INT HUP QUIT; sleep "$1") &
(sh -c 'kill -STOP $$; sleep "$1"' sh "$1") &
"""


def unique_sleep() -> str:
    return f"9{secrets.randbelow(10**9):09d}.25"


async def begin(sandbox: Sandbox, script: str, marker: str) -> asyncio.Task[ExecResult]:
    """Start a long command, and come back when its shell and its five children run."""
    argv = ["sh", "-c", script, "sh", marker]
    task = asyncio.create_task(sandbox.exec(argv, timeout_s=60.0))
    await asyncio.to_thread(until, lambda: len(with_argument(marker)) >= 6)
    return task


async def test_what_a_command_leaves_behind_is_killed(pool: LocalSandboxPool) -> None:
    marker = unique_sleep()
    async with pool.open(SPEC) as sandbox:
        result = await sandbox.exec(["sh", "-c", STUBBORN + "sleep 0.1", "sh", marker])
        assert (result.outcome, result.wall_s < 5) == (ExecOutcome.OK, True)
        assert with_argument(marker) == []
        assert (await sandbox.exec(["true"])).rc == 0


async def test_a_time_out_kills_the_whole_tree(pool: LocalSandboxPool) -> None:
    marker = unique_sleep()
    async with pool.open(SPEC) as sandbox:
        script = f"echo before; {STUBBORN} sleep $1"
        result = await sandbox.exec(["sh", "-c", script, "sh", marker], timeout_s=0.5)
        assert (result.outcome, result.rc, result.signal) == (ExecOutcome.TIMEOUT, None, 9)
        assert result.stdout == b"before\n"
        assert 0.5 <= result.wall_s < 5
        assert with_argument(marker) == []
        assert (await sandbox.exec(["echo", "usable"])).stdout == b"usable\n"


async def test_cancelling_the_caller_kills_the_whole_tree(pool: LocalSandboxPool) -> None:
    marker = unique_sleep()
    async with pool.open(SPEC) as sandbox:
        task = await begin(sandbox, STUBBORN + "sleep $1", marker)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert with_argument(marker) == []
        assert (await sandbox.exec(["echo", "usable"])).stdout == b"usable\n"


async def test_who_waits_for_a_turn_can_be_cancelled_alone(pool: LocalSandboxPool) -> None:
    marker = unique_sleep()
    async with pool.open(SPEC) as sandbox:
        running = await begin(sandbox, STUBBORN + "sleep $1", marker)
        waiting = asyncio.ensure_future(sandbox.exec(["true"]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(with_argument(marker)) >= 6
        running.cancel()


async def test_closing_a_sandbox_ends_its_running_command(pool: LocalSandboxPool) -> None:
    marker = unique_sleep()
    async with pool.open(SPEC) as sandbox:
        task = await begin(sandbox, STUBBORN + "sleep $1", marker)
    assert with_argument(marker) == []
    assert (await task).outcome is ExecOutcome.SANDBOX_DEAD


async def test_closing_the_pool_ends_everything(new_pool: LocalSandboxPool) -> None:
    marker = unique_sleep()
    async with new_pool.open(SPEC) as sandbox:
        task = await begin(sandbox, STUBBORN + "sleep $1", marker)
        await asyncio.to_thread(new_pool.close)
        assert with_argument(marker) == []
        assert (await task).outcome is ExecOutcome.SANDBOX_DEAD
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"])
    new_pool.close()
    with pytest.raises(SandboxError, match="closed"):
        async with new_pool.open(SPEC):
            pass


async def test_a_sandbox_ends_with_its_lifetime(pool: LocalSandboxPool) -> None:
    async with pool.open(SandboxSpec(timeout_s=0.5)) as sandbox:
        result = await sandbox.exec(["sleep", "30"], timeout_s=60.0)
        assert (result.outcome, result.wall_s < 3) == (ExecOutcome.TIMEOUT, True)
        with pytest.raises(SandboxError, match="life"):
            await sandbox.exec(["true"])


async def test_a_dead_helper_ends_its_sandboxes_and_is_replaced(
    new_pool: LocalSandboxPool,
) -> None:
    marker = unique_sleep()
    before = set(children_of(os.getpid()))
    async with new_pool.open(SPEC) as sandbox:
        (keeper,) = set(children_of(os.getpid())) - before
        (zygote,) = children_of(keeper)
        task = await begin(sandbox, STUBBORN + "sleep $1", marker)
        os.kill(zygote, signal.SIGKILL)
        assert (await task).outcome is ExecOutcome.SANDBOX_DEAD
        await asyncio.to_thread(until, lambda: not is_running(keeper))
        assert with_argument(marker) == []
        async with new_pool.open(SPEC) as other:
            assert (await other.exec(["echo", "again"])).stdout == b"again\n"


async def test_what_a_killed_keeper_leaves_the_next_pool_clears_away(
    new_pool: LocalSandboxPool,
) -> None:
    marker = unique_sleep()
    before = set(children_of(os.getpid()))
    async with new_pool.open(SPEC) as sandbox:
        (keeper,) = set(children_of(os.getpid())) - before
        task = await begin(sandbox, STUBBORN + "sleep $1", marker)
        os.kill(keeper, signal.SIGKILL)
        assert (await task).outcome is ExecOutcome.SANDBOX_DEAD
        await asyncio.to_thread(until, lambda: not with_argument(marker))
    async with new_pool.open(SPEC) as sandbox:
        assert (await sandbox.exec(["true"])).rc == 0
    assert _groups_of(keeper) == []


HOST = """
import asyncio, sys
from practicum.environment.sandbox.local import LocalSandboxPool
from practicum.protocols import SandboxSpec

async def main():
    pool = LocalSandboxPool()
    async with pool.open(SandboxSpec()) as one, pool.open(SandboxSpec()) as idle:
        await one.exec(["sh", "-c", sys.argv[1], "sh", sys.argv[2]], timeout_s=60.0)

asyncio.run(main())
"""


@pytest.mark.usefixtures("isolated")
def test_a_killed_host_leaves_nothing_behind() -> None:
    marker = unique_sleep()
    host = subprocess.Popen([sys.executable, "-c", HOST, STUBBORN + "sleep $1", marker])
    # One for the host's own command line, one for the shell, the others for its children.
    until(lambda: len(with_argument(marker)) >= 7)
    (keeper,) = children_of(host.pid)
    helpers = [keeper, *children_of(keeper)]
    helpers += [pid for zygote in children_of(keeper) for pid in children_of(zygote)]
    assert len(helpers) == 4
    host.kill()
    host.wait()
    until(lambda: not with_argument(marker) and not any(map(is_running, helpers)))
    until(lambda: _groups_of(keeper) == [])


async def test_a_pool_leaves_no_process_mount_group_or_descriptor(isolated: None) -> None:
    mounts, descriptors = Path("/proc/self/mountinfo").read_text(), _num_descriptors()
    before = set(children_of(os.getpid()))
    pool = LocalSandboxPool()
    async with pool.open(SPEC) as sandbox:
        (keeper,) = set(children_of(os.getpid())) - before
        if capabilities().cgroup_version:
            assert any(path.name != "" for path in _groups_of(keeper))
        await sandbox.exec(["sh", "-c", "echo x > x; sleep 0"])
    open_after_one = _num_descriptors()
    for _ in range(20):
        async with pool.open(SPEC) as sandbox:
            await sandbox.exec(["true"])
            await sandbox.write_file("f", b"x")
            await sandbox.read_file("f")
    assert _num_descriptors() == open_after_one
    assert [
        child for group in _groups_of(keeper) for child in group.iterdir() if child.is_dir()
    ] == []
    pool.close()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert _num_descriptors() == descriptors
    assert not is_running(keeper)
    assert _groups_of(keeper) == []


async def test_fifty_stubborn_processes_die_quickly(pool: LocalSandboxPool) -> None:
    marker = unique_sleep()
    script = 'for i in $(seq 50); do (trap "" TERM; setsid sleep "$1") & done; sleep "$1"'
    async with pool.open(SandboxSpec(pids=200)) as sandbox:
        task = asyncio.ensure_future(
            sandbox.exec(["sh", "-c", script, "sh", marker], timeout_s=60.0)
        )
        await asyncio.to_thread(until, lambda: len(with_argument(marker)) >= 52)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 5
        assert with_argument(marker) == []


def _num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _groups_of(keeper: int) -> list[Path]:
    """Control group folders of the pool whose keeper has this process id."""
    return [path for path in Path("/sys/fs/cgroup").rglob(f"practicum-{keeper}-*")]
