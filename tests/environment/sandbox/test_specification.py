"""What is refused before anything is made, and that the message says which field and why."""

from dataclasses import replace
from typing import Any

import pytest

from practicum.environment.sandbox.specification import base_environment, check_spec
from practicum.errors import UsageError
from practicum.protocols import SandboxSpec


def test_the_defaults_are_fine() -> None:
    check_spec(SandboxSpec())
    check_spec(SandboxSpec(workdir="/home/user/x", files={"a/b.txt": ""}, network="loopback"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", "ubuntu:24.04"),
        ("cpus", 0.0),
        ("cpus", float("nan")),
        ("memory_mb", 0),
        ("storage_mb", -1),
        ("pids", 0),
        ("timeout_s", float("inf")),
        ("network", "public"),
        ("workdir", "work"),
        ("workdir", "/"),
        ("workdir", "/work/"),
        ("workdir", "/work/../etc"),
        ("workdir", "//work"),
        ("workdir", "/usr/work"),
        ("workdir", "/proc"),
        ("files", {"/etc/passwd": ""}),
        ("files", {"../x": ""}),
        ("files", {"a/../../x": ""}),
        ("files", {"": ""}),
        ("files", {"nul\0": ""}),
    ],
)
def test_what_cannot_be_is_named(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=field.removesuffix("s") if field == "files" else field):
        check_spec(replace(SandboxSpec(), **{field: value}))


def test_the_base_environment_is_a_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    environment = base_environment("/work", "/tmp")
    assert set(environment) == {"PATH", "HOME", "TMPDIR", "LANG", "USER"}
