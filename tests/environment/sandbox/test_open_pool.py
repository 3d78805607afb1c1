"""Which pool one gets, and what one is told where there is none."""

import errno
import sys
from pathlib import Path

import pytest

from practicum.environment.sandbox import capabilities, mending, open_pool, probe
from practicum.environment.sandbox.launch import NotPossible
from practicum.environment.sandbox.local import LocalSandboxPool
from practicum.environment.sandbox.process import ProcessSandboxPool
from practicum.errors import SandboxError, UsageError
from practicum.protocols import SandboxSpec


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch):
    """A machine whose processor has no system-call table here: the real refusal, early on."""
    monkeypatch.setattr("practicum.environment.sandbox.zygote.seccomp.AUDIT_ARCH", {})
    probe.capabilities.cache_clear()
    yield
    probe.capabilities.cache_clear()


@pytest.mark.usefixtures("isolated")
def test_where_namespaces_work_they_are_used() -> None:
    for unsafe in (False, True):
        pool = open_pool(unsafe=unsafe)
        assert isinstance(pool, LocalSandboxPool)
        pool.close()


@pytest.mark.usefixtures("isolated")
def test_capabilities_are_found_by_trying_and_remembered() -> None:
    found = capabilities()
    assert found is capabilities()
    assert found.python
    assert not found.missing
    assert set(found.limits) == {"memory", "processes", "cpu", "disk", "time", "output"}
    assert found.limits["processes"].strength == "hard"


@pytest.mark.usefixtures("no_namespaces")
def test_without_isolation_one_is_told_what_is_missing_and_what_to_do() -> None:
    with pytest.raises(UsageError, match="no system-call table for") as caught:
        open_pool()
    assert "--unsafe-sandbox" in str(caught.value)
    assert "sandbox.unsafe" in str(caught.value)
    assert "To enable it" in str(caught.value)
    pool = open_pool(unsafe=True)
    assert isinstance(pool, ProcessSandboxPool)
    pool.close()


@pytest.mark.usefixtures("no_namespaces")
async def test_the_local_pool_itself_says_what_is_missing() -> None:
    with pytest.raises(SandboxError, match="no system-call table"):
        async with LocalSandboxPool().open(SandboxSpec()):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux settings")
@pytest.mark.parametrize(
    ("code", "setting", "value", "remedy"),
    [
        (errno.EPERM, "kernel/unprivileged_userns_clone", "0", "unprivileged_userns_clone=1"),
        (errno.ENOSPC, "user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        (errno.ENOSPC, "user/max_net_namespaces", "0", "user.max_net_namespaces=10000"),
        (errno.ENOSYS, "x", "", "Linux 5.12"),
        (errno.EPERM, "x", "", "as root"),
    ],
)
def test_a_remedy_fits_the_machines_settings(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: int,
    setting: str,
    value: str,
    remedy: str,
) -> None:
    (tmp_path / setting).parent.mkdir(exist_ok=True)
    (tmp_path / setting).write_text(value + "\n")
    monkeypatch.setattr(mending, "SETTINGS", tmp_path)
    monkeypatch.setattr(mending, "CONTAINER_MARKS", ())
    explanation = mending.explain(NotPossible("user namespace", code))
    assert explanation.missing.startswith("user namespace: ")
    assert any(remedy in line for line in explanation.remedies)
    assert remedy in explanation.as_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux settings")
def test_in_a_container_the_needed_options_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mending, "CONTAINER_MARKS", (str(tmp_path),))
    explanation = mending.explain(NotPossible("pid namespace", errno.EPERM))
    assert any("--cap-add SYS_ADMIN" in line for line in explanation.remedies)
