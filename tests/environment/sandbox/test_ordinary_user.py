"""The same sandboxes without being root: in a user namespace of the user's own.

As root, the test becomes `nobody` and shows it the interpreter and the sources in a place of their
own, because they may lie in a home folder that others cannot enter.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import practicum

SCRIPT = """
import asyncio, json, os, time
from dataclasses import asdict
from practicum.environment.sandbox import capabilities, open_pool
from practicum.environment.sandbox.probe import Capabilities
from practicum.protocols import SandboxSpec

FORK_BOMB = '''
import os, time
n = 0
while True:
    try:
        if os.fork() == 0: time.sleep(60)
        n += 1
    except OSError as error:
        print(n, error.strerror); break
'''

CONNECT = "import socket; socket.create_connection(('127.0.0.1', 1))"
TOUCH_THE_HOST = "ls -d /home /var /etc/shadow; echo x > /usr/x; mount -t tmpfs x /tmp"

async def main():
    seen = {"uid": os.getuid(), "found": asdict(capabilities())}
    pool = open_pool()
    seen["isolation"] = pool.isolation
    async with pool.open(SandboxSpec(pids=10, memory_mb=64, storage_mb=4)) as sandbox:
        async def run(name, *argv, **options):
            result = await sandbox.exec(argv, **options)
            seen[name] = [result.outcome, result.stdout.decode(), result.stderr.decode()]
        await run("id", "sh", "-c", "id -u; id -G; cat /proc/self/uid_map")
        await run("rights", "grep", "-E", "CapPrm|CapBnd|NoNewPrivs|Seccomp:", "/proc/self/status")
        await run("bomb", "python3", "-c", FORK_BOMB)
        await run("hog", "python3", "-c", "bytearray(1 << 30)")
        await run("disk", "sh", "-c", "head -c 9000000 /dev/zero > big")
        await run("tidy", "rm", "big")
        await run("network", "python3", "-c", CONNECT)
        await run("files", "sh", "-c", TOUCH_THE_HOST)
        await run("timeout", "sh", "-c", "(setsid sleep 61.75 &); sleep 61.75", timeout_s=0.3)
        await run("left", "sh", "-c", "ls -d /proc/[0-9]* | wc -l")
        await sandbox.write_file("f", b"kept")
        seen["file"] = (await sandbox.read_file("f")).decode()
    pool.close()
    print(json.dumps(seen))

asyncio.run(main())
"""

SHOW_AND_BECOME_NOBODY = """
set -e
mount -t tmpfs none /mnt
mkdir /mnt/python /mnt/src
mount --bind "$1" /mnt/python
mount --bind "$2" /mnt/src
exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
    env -i PATH=/usr/bin:/bin PYTHONPATH=/mnt/src PYTHONDONTWRITEBYTECODE=1 \
    /mnt/python/bin/"$3" -c "$4"
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What a program run by an ordinary user finds."""
    if os.geteuid() != 0:
        argv = [sys.executable, "-c", SCRIPT]
    elif missing := [name for name in ("unshare", "mount", "setpriv") if not shutil.which(name)]:
        pytest.skip(f"cannot become an ordinary user without {', '.join(missing)}")
    else:
        prefix, source = Path(sys.base_prefix).resolve(), Path(practicum.__file__).parents[1]
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        argv = ["unshare", "--mount", "sh", "-c", SHOW_AND_BECOME_NOBODY, "sh"]
        argv += [str(prefix), str(source), python, SCRIPT]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if "needs an isolated sandbox" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_ordinary_user_gets_isolation(seen: dict[str, Any]) -> None:
    assert seen["uid"] != 0
    assert seen["isolation"] == "namespaces"
    assert seen["found"]["own_uid"] is False
    user, groups, mapping = seen["id"][1].splitlines()
    assert user == "1000"
    assert groups.split()[0] == "1000"
    assert mapping.split()[::2] == ["1000", "1"]


def test_an_ordinary_users_commands_have_no_rights(seen: dict[str, Any]) -> None:
    fields = dict(line.split(":\t") for line in seen["rights"][1].splitlines())
    assert int(fields["CapPrm"], 16) == int(fields["CapBnd"], 16) == 0
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


def test_an_ordinary_users_limits_hold(seen: dict[str, Any]) -> None:
    num_forks, reason = seen["bomb"][1].split(" ", 1)
    assert 5 <= int(num_forks) <= 10
    assert "temporarily unavailable" in reason
    if seen["found"]["limits"]["memory"]["strength"] == "soft":
        assert "MemoryError" in seen["hog"][2]
    assert seen["disk"][0] == "disk"


def test_an_ordinary_user_sees_and_reaches_nothing_of_the_host(seen: dict[str, Any]) -> None:
    assert "unreachable" in seen["network"][2]
    assert seen["files"][1] == ""
    assert seen["files"][2].count("\n") >= 5


def test_an_ordinary_users_time_out_kills_the_whole_tree(seen: dict[str, Any]) -> None:
    assert seen["timeout"][0] == "timeout"
    # The shell, ls and wc themselves.
    assert int(seen["left"][1]) <= 3
    assert seen["file"] == "kept"


def test_soft_limits_are_declared_with_a_reason_and_a_remedy(seen: dict[str, Any]) -> None:
    found = seen["found"]
    if found["cgroup_version"] != 0:
        pytest.skip("this user may divide control groups")
    assert found["limits"]["memory"]["strength"] == "soft"
    assert found["limits"]["processes"]["strength"] == "hard"
    assert "(" in found["limits"]["memory"]["how"]
    assert any("Delegate=yes" in remedy for remedy in found["remedies"])
