"""What a command inside must not see, touch or ask of the kernel."""

import os
import secrets
import socket
from pathlib import Path

import pytest

from practicum.environment.sandbox.local import LocalSandboxPool
from practicum.protocols import ExecResult, SandboxSpec

SPEC = SandboxSpec()


async def python(pool: LocalSandboxPool, program: str, *arguments: str) -> ExecResult:
    async with pool.open(SPEC) as sandbox:
        return await sandbox.exec(["python3", "-c", program, *arguments])


async def test_files_of_the_host_are_not_there(pool: LocalSandboxPool, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("secret")
    paths = [str(canary), __file__, "/etc/shadow", "/home", "/var", "/run", "/sys", "/boot"]
    paths += [str(Path.home() / ".bashrc"), "/proc/1/root", "/proc/1/environ", "/proc/1/fd"]
    program = "import os, sys; print([p for p in sys.argv[1:] if os.path.exists(p)])"
    assert (await python(pool, program, *paths)).stdout == b"[]\n"


async def test_the_hosts_environment_does_not_come_along(
    pool: LocalSandboxPool, new_pool: LocalSandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_TEST_TOKEN", "secret-of-the-host")
    for some_pool in (pool, new_pool):
        async with some_pool.open(SPEC) as sandbox:
            result = await sandbox.exec(["sh", "-c", "env; cat /proc/*/environ"])
        assert b"HOME=/work" in result.stdout
        assert b"secret-of-the-host" not in result.stdout


async def test_only_private_folders_can_be_written(pool: LocalSandboxPool, tmp_path: Path) -> None:
    program = """
import os
def writable(folder):
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
        return True
    except OSError:
        return False
folders = {folder for folder, _, _ in os.walk("/") if not folder.startswith(("/proc", "/usr"))}
print(sorted(folder for folder in folders | {"/usr", "/usr/bin"} if writable(folder)))
for path in ("/proc/self/oom_score_adj", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"):
    try:
        open(path, "w")
        print("opened", path)
    except OSError:
        pass
"""
    result = await python(pool, program)
    assert result.stdout == b"['/dev/shm', '/tmp', '/work']\n"


async def test_a_link_planted_inside_reads_nothing_of_the_host(
    pool: LocalSandboxPool, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("secret")
    async with pool.open(SPEC) as sandbox:
        await sandbox.exec(
            ["sh", "-c", 'ln -s "$1" direct; ln -s "$2" folder; ln -s /etc/passwd inside', "sh"]
            + [str(canary), str(tmp_path)]
        )
        for path in ("direct", "folder/canary", str(canary), f"../..{canary}"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file(path)
        # A link within the sandbox is an ordinary link, to the sandbox's own file.
        assert b"sandbox:x:1000" in await sandbox.read_file("inside")


@pytest.mark.parametrize("target", ["environ", "mem", "maps", "fd/3", "root/etc/passwd", "cwd/x"])
async def test_a_link_into_proc_does_not_read_pid_1(pool: LocalSandboxPool, target: str) -> None:
    async with pool.open(SPEC) as sandbox:
        await sandbox.exec(
            ["sh", "-c", f"echo x > x; ln -s /proc/self/{target} a; ln -s /proc/1/{target} b"]
        )
        for path in ("a", "b"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file(path)


async def test_writing_replaces_a_link_instead_of_following_it(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        await sandbox.exec(["sh", "-c", "echo old > target; ln -s target link"])
        await sandbox.write_file("link", b"new")
        assert await sandbox.read_file("target") == b"old\n"
        assert await sandbox.read_file("link") == b"new"


async def test_there_is_no_network(pool: LocalSandboxPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        name = f"\0practicum-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(name)
            abstract.listen()
            program = """
import socket, sys
def connect(family, address):
    try:
        socket.socket(family).connect(address)
        return "connected"
    except OSError as error:
        return error.strerror
print(connect(socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))))
print(connect(socket.AF_INET, ("192.0.2.1", 80)))
print(connect(socket.AF_UNIX, "\\0" + sys.argv[2]))
print(connect(socket.AF_VSOCK, (2, 1)))
"""
            result = await python(pool, program, str(server.getsockname()[1]), name[1:])
    assert result.stdout.decode().splitlines() == [
        "Network is unreachable",
        "Network is unreachable",
        "Connection refused",
        "Address family not supported by protocol",
    ]


async def test_commands_have_no_rights_at_all(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        status = (await sandbox.exec(["cat", "/proc/self/status"])).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert set(fields["Uid"].split()) == {"1000"}


async def test_every_sandbox_is_another_user_on_the_host(pool: LocalSandboxPool) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give sandboxes uids of their own")
    async with pool.open(SPEC) as one, pool.open(SPEC) as two:
        maps = [(await s.exec(["cat", "/proc/self/uid_map"])).stdout.split() for s in (one, two)]
    assert maps[0][0] == maps[1][0] == b"1000"
    outside = [int(mapping[1]) for mapping in maps]
    assert outside[0] != outside[1]
    assert min(outside) >= 1_900_000_000


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /tmp",
        "umount /tmp",
        "unshare -r true",
        "unshare -Urm true",
        "chroot /usr true",
        "hostname changed",
        "mknod /tmp/null c 1 3",
        "nsenter -t 1 -m true",
    ],
)
async def test_administration_is_refused(pool: LocalSandboxPool, command: str) -> None:
    async with pool.open(SPEC) as sandbox:
        result = await sandbox.exec(["sh", "-c", command])
    assert result.rc not in (0, 127)


async def test_dangerous_system_calls_are_refused(pool: LocalSandboxPool) -> None:
    program = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
def call(number, *arguments):
    libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments))
    return errno.errorcode.get(ctypes.get_errno())
new_user, new_thread = 0x10000000, 435
print(call(165 if x86 else 40, 0, 0, 0, 0, 0))         # mount
print(call(166 if x86 else 39, 0, 0))                  # umount2
print(call(272 if x86 else 97, new_user))              # unshare
print(call(308 if x86 else 268, 0, 0))                 # setns
print(call(101 if x86 else 117, 0, 0, 0, 0))           # ptrace(TRACEME)
print(call(310 if x86 else 270, 1, 0, 0, 0, 0, 0))     # process_vm_readv(PID 1)
print(call(56 if x86 else 220, new_user | 17, 0, 0, 0, 0))
print(call(new_thread, 0, 0))                          # clone3
print(call(425, 1, 0))                                 # io_uring_setup
print(call(321 if x86 else 280, 0, 0, 0))              # bpf
print(call(250 if x86 else 219, 0, 0, 0))              # keyctl
print(call(302 if x86 else 261, 1, 7, 0, 0))           # prlimit64 of PID 1
print(call(16 if x86 else 29, 0, (1 << 32) | 0x5412))  # ioctl(TIOCSTI), high bits set
"""
    result = await python(pool, program)
    refused = ["EPERM"] * 13
    refused[7] = "ENOSYS"
    assert result.stdout.decode().split() == refused, result.stderr


async def test_signals_do_not_reach_pid_1(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as sandbox:
        for name in ("KILL", "TERM", "INT", "STOP", "SEGV", "CHLD", "HUP"):
            await sandbox.exec(["sh", "-c", f"kill -{name} 1; kill -{name} -1"])
        assert (await sandbox.exec(["echo", "alive"])).stdout == b"alive\n"


async def test_processes_of_others_are_not_visible(pool: LocalSandboxPool) -> None:
    async with pool.open(SPEC) as one, pool.open(SPEC) as two:
        listing = "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))"
        for sandbox in (one, two):
            result = await sandbox.exec(["python3", "-c", listing])
            assert result.stdout.count(b",") == 0
