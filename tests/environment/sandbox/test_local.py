"""Running commands: what goes in, what comes out, and who may call from where."""

import asyncio
import threading

import pytest

from practicum.environment.sandbox.local import LocalSandboxPool
from practicum.errors import SandboxError, UsageError
from practicum.protocols import ExecOutcome, ExecResult, SandboxPool, SandboxSpec

SPEC = SandboxSpec()


async def run(pool: SandboxPool, *argv: str, spec: SandboxSpec = SPEC) -> ExecResult:
    async with pool.open(spec) as sandbox:
        return await sandbox.exec(argv)


async def test_every_field_of_a_result_is_filled(pool: LocalSandboxPool) -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sum(range(10**6))"
    result = await run(pool, "python3", "-c", program)
    assert result.outcome is ExecOutcome.OK
    assert (result.rc, result.signal) == (0, None)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert (result.stdout_bytes, result.stderr_bytes) == (4, 4)
    assert not result.stdout_truncated
    assert not result.stderr_truncated
    assert result.cpu_s > 0
    assert 0 < result.wall_s < 10
    assert 1 < result.peak_memory_mb < 256


async def test_exit_codes_and_signals_are_told_apart(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        failed = await sandbox.exec(["sh", "-c", "exit 7"])
        killed = await sandbox.exec(["sh", "-c", "kill -SEGV $$"])
    assert (failed.outcome, failed.rc, failed.signal) == (ExecOutcome.NONZERO, 7, None)
    assert (killed.outcome, killed.rc, killed.signal) == (ExecOutcome.NONZERO, None, 11)


@pytest.mark.parametrize(
    ("argv", "cwd", "rc"),
    [
        (["no-such-command"], None, 127),
        (["true"], "no-such-folder", 127),
        (["/etc/passwd"], None, 126),
        (["echo", "a\0b"], None, 126),
        (["echo", "\ud800"], None, 126),
        (["echo", "x" * 200_000], None, 126),
    ],
)
async def test_a_command_that_cannot_start_is_the_callers_failure(
    pool: LocalSandboxPool, argv: list[str], cwd: str | None, rc: int
) -> None:
    async with pool.open(SPEC) as sandbox:
        result = await sandbox.exec(argv, cwd=cwd)
    assert (result.outcome, result.rc) == (ExecOutcome.NONZERO, rc)
    assert b"cannot run" in result.stderr


async def test_input_of_any_size_arrives(pool: LocalSandboxPool) -> None:
    content = bytes(range(256)) * 8192
    async with pool.open(SPEC) as sandbox:
        echoed = await sandbox.exec(["cat"], stdin=content, max_output=len(content))
        nothing = await sandbox.exec(["cat"])
        unread = await sandbox.exec(["true"], stdin=content)
    assert echoed.stdout == content
    assert nothing.stdout == b""
    assert unread.outcome is ExecOutcome.OK


async def test_output_is_bytes_not_text(pool: LocalSandboxPool) -> None:
    result = await run(pool, "printf", r"\377\376\000\n")
    assert result.stdout == b"\xff\xfe\x00\n"


async def test_the_head_of_a_flood_is_kept_and_the_rest_counted(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        flood = "head -c 20000000 /dev/zero | tr '\\0' x; printf end >&2"
        result = await sandbox.exec(["sh", "-c", flood], max_output=1000)
    assert result.outcome is ExecOutcome.OUTPUT_TRUNCATED
    assert (result.stdout, result.stdout_bytes) == (b"x" * 1000, 20_000_000)
    assert result.stdout_truncated
    assert (result.stderr, result.stderr_truncated) == (b"end", False)


async def test_an_endless_flood_ends_with_its_time(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        result = await sandbox.exec(["yes"], timeout_s=0.3, max_output=10)
    assert result.outcome is ExecOutcome.TIMEOUT
    assert result.stdout == b"y\n" * 5
    assert result.stdout_bytes > 10


async def test_environment_and_folder_are_as_asked(pool: LocalSandboxPool) -> None:
    spec = SandboxSpec(env={"A": "spec", "B": "spec"}, workdir="/home/task", files={"d/f": "text"})
    async with pool.open(spec) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", 'echo "$A $B $HOME"; pwd; cat f'], env={"B": "call"}, cwd="d"
        )
        assert result.stdout == b"spec call /home/task\n/home/task/d\ntext"


async def test_files_survive_from_one_command_to_the_next(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        await sandbox.exec(["sh", "-c", "echo one > /tmp/kept"])
        assert (await sandbox.exec(["cat", "/tmp/kept"])).stdout == b"one\n"
    assert (await run(pool, "cat", "/tmp/kept")).rc == 1


async def test_files_are_written_and_read_back(pool: LocalSandboxPool) -> None:
    content = bytes(range(256)) * 5000
    async with pool.open(SandboxSpec(files={"a.txt": "ä"})) as sandbox:
        await sandbox.write_file("deep/er/b.bin", content)
        await sandbox.write_file("/tmp/c", b"c")
        await sandbox.write_file("a.txt", b"replaced")
        assert await sandbox.read_file("/work/deep/er/b.bin", max_bytes=1 << 30) == content
        assert await sandbox.read_file("deep/er/b.bin", max_bytes=7) == content[:7]
        assert await sandbox.read_file("/tmp/c") == b"c"
        assert await sandbox.read_file("a.txt") == b"replaced"
        assert (await sandbox.exec(["cat", "a.txt"])).stdout == b"replaced"


async def test_what_is_not_a_readable_file_is_not_found(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        await sandbox.exec(["sh", "-c", "mkdir d; mkfifo p; ln -s l l; touch x; chmod 0 x"])
        for path in ("missing", "d", "p", "l", "x", "x/y", "/dev/zero", "nul\0", "\ud800"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file(path)


async def test_writing_where_nothing_can_be_written_says_why(pool: LocalSandboxPool) -> None:
    async with pool.open(SandboxSpec(storage_mb=1)) as sandbox:
        await sandbox.exec(["mkdir", "d"])
        with pytest.raises(IsADirectoryError):
            await sandbox.write_file("d", b"")
        with pytest.raises(OSError, match="Read-only"):
            await sandbox.write_file("/usr/x", b"")
        with pytest.raises(OSError, match="No space"):
            await sandbox.write_file("big", bytes(2 << 20))
        assert (await sandbox.exec(["true"])).rc == 0


async def test_files_that_do_not_fit_are_named(pool: LocalSandboxPool) -> None:
    spec = SandboxSpec(storage_mb=1, files={"big.txt": "x" * (2 << 20)})
    with pytest.raises(SandboxError, match=r"big\.txt.*No space left.*storage_mb is 1"):
        async with pool.open(spec):
            pass


async def test_loopback_works_when_asked_for(pool: LocalSandboxPool) -> None:
    program = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b"over loopback")
print(client.recv(100))
"""
    spec = SandboxSpec(network="loopback")
    assert b"over loopback" in (await run(pool, "python3", "-c", program, spec=spec)).stdout
    assert (await run(pool, "python3", "-c", program)).rc == 1


async def test_many_sandboxes_run_at_once_without_mixing(pool: LocalSandboxPool) -> None:
    async def play(number: int) -> bytes:
        async with pool.open(SandboxSpec(files={"n": str(number)})) as sandbox:
            await sandbox.exec(["sh", "-c", "cat n > m"])
            return (await sandbox.exec(["cat", "m"])).stdout

    outputs = await asyncio.gather(*(play(number) for number in range(20)))
    assert outputs == [str(number).encode() for number in range(20)]


async def test_commands_of_one_sandbox_take_turns(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        script = "echo begin >> log; sleep 0.05; echo end >> log"
        await asyncio.gather(*(sandbox.exec(["sh", "-c", script]) for _ in range(3)))
        assert await sandbox.read_file("log") == b"begin\nend\n" * 3


def test_a_pool_serves_several_event_loops_and_threads(pool: LocalSandboxPool) -> None:
    def on_a_loop_of_its_own() -> bytes:
        return asyncio.run(run(pool, "echo", "hello")).stdout

    assert [on_a_loop_of_its_own() for _ in range(2)] == [b"hello\n"] * 2
    outputs: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: outputs.append(on_a_loop_of_its_own())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == [b"hello\n"] * 4


async def test_a_closed_sandbox_says_so(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        pass
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec(["true"])


async def test_an_impossible_sandbox_is_refused_before_it_is_made(pool: LocalSandboxPool) -> None:
    with pytest.raises(UsageError, match="image"):
        async with pool.open(SandboxSpec(image="ubuntu")):
            pass


async def test_a_command_holds_three_descriptors_and_no_more(pool: LocalSandboxPool) -> None:
    program = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"
    # The fourth is that of the listing itself.
    assert (await run(pool, "python3", "-I", "-S", "-c", program)).stdout == b"[0, 1, 2, 3]\n"


async def test_signals_are_as_a_shell_would_leave_them(pool: LocalSandboxPool) -> None:
    status = (await run(pool, "cat", "/proc/self/status")).stdout.decode()
    fields = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    # Signals 32 and 33 are the C library's own: no program may set them, so they stay as inherited.
    own = 1 << 31 | 1 << 32
    assert int(fields["SigBlk"], 16) & ~own == int(fields["SigIgn"], 16) & ~own == 0


def test_it_says_that_it_isolates(pool: LocalSandboxPool) -> None:
    assert pool.isolation == "namespaces"
