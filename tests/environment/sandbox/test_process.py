"""The unsafe backend: no isolation, but the same results and the same files."""

import asyncio
import os
import secrets
from pathlib import Path

import pytest

from practicum.environment.sandbox.process import ProcessSandboxPool
from practicum.errors import SandboxError
from practicum.protocols import ExecOutcome, SandboxSpec

from .processes import until, with_argument


@pytest.fixture
def pool():
    pool = ProcessSandboxPool()
    yield pool
    pool.close()


def unique_sleep() -> str:
    return f"8{secrets.randbelow(10**9):09d}.25"


def test_it_says_that_it_isolates_nothing(pool: ProcessSandboxPool) -> None:
    assert pool.isolation == "none"


async def test_results_are_those_of_the_command(
    pool: ProcessSandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_TEST_TOKEN", "secret")
    async with pool.open(SandboxSpec(files={"a/b": "text"}, env={"A": "1"})) as sandbox:
        good = await sandbox.exec(
            ["sh", "-c", "cat; echo $A$B; cat b"], stdin=b"in ", cwd="a", env={"B": "2"}
        )
        assert (good.outcome, good.rc, good.stdout) == (ExecOutcome.OK, 0, b"in 12\ntext")
        bad = await sandbox.exec(["sh", "-c", "echo e >&2; exit 3"])
        assert (bad.outcome, bad.rc, bad.stderr) == (ExecOutcome.NONZERO, 3, b"e\n")
        killed = await sandbox.exec(["sh", "-c", "kill -9 $$"])
        assert (killed.rc, killed.signal) == (None, 9)
        assert (await sandbox.exec(["no-such-command"])).rc == 127
        flood = await sandbox.exec(["sh", "-c", "yes | head -c 1000000"], max_output=4)
        assert (flood.outcome, flood.stdout) == (ExecOutcome.OUTPUT_TRUNCATED, b"y\ny\n")
        assert flood.stdout_bytes == 1_000_000
        environment = await sandbox.exec(["env"])
        assert b"secret" not in environment.stdout


async def test_files_stay_in_the_folder(pool: ProcessSandboxPool, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("outside")
    async with pool.open(SandboxSpec()) as sandbox:
        await sandbox.write_file("/work/d/x", b"x")
        assert await sandbox.read_file("d/x") == b"x"
        assert (await sandbox.exec(["cat", "d/x"])).stdout == b"x"
        await sandbox.exec(["ln", "-s", str(tmp_path), "link"])
        for path in ("link/outside", str(tmp_path / "outside"), "../work2", "d", "missing"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file(path)
        folder = (await sandbox.exec(["pwd"])).stdout.decode().strip()
    assert not os.path.exists(folder)


async def test_a_time_out_kills_the_process_group(pool: ProcessSandboxPool) -> None:
    marker = unique_sleep()
    async with pool.open(SandboxSpec()) as sandbox:
        script = 'echo before; sleep "$1" & sleep "$1"'
        result = await sandbox.exec(["sh", "-c", script, "sh", marker], timeout_s=0.3)
    assert (result.outcome, result.stdout) == (ExecOutcome.TIMEOUT, b"before\n")
    await asyncio.to_thread(until, lambda: not with_argument(marker))


async def test_cancelling_and_closing_end_commands(pool: ProcessSandboxPool) -> None:
    marker = unique_sleep()
    async with pool.open(SandboxSpec()) as sandbox:
        for end in ("cancel", "close"):
            task = asyncio.ensure_future(sandbox.exec(["sleep", marker], timeout_s=60.0))
            await asyncio.to_thread(until, lambda: with_argument(marker))
            if end == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                pool.close()
                assert (await task).signal == 9
            await asyncio.to_thread(until, lambda: not with_argument(marker))
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"])


async def test_a_file_larger_than_the_limit_is_not_written(pool: ProcessSandboxPool) -> None:
    async with pool.open(SandboxSpec(storage_mb=1)) as sandbox:
        result = await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero > big"])
        assert result.rc != 0
        assert len(await sandbox.read_file("big", max_bytes=1 << 30)) <= 1 << 20
