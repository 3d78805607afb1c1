"""One run, one folder, one owner; and messages that say what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.config import RunConfig, resolve
from practicum.errors import StoreError, UsageError
from practicum.observe.run_folder import RunFolder, free_name

CONFIG = resolve({"name": "demo", "seed": 3, "train": {"learning_rate": 2e-5}}, {})


def test_a_created_run_opens_with_its_configuration(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "demo", CONFIG).close()
    run = RunFolder.open(tmp_path / "demo")
    assert run.config() == CONFIG
    manifest = run.manifest()
    assert manifest["id"] == "demo"
    assert {"python", "practicum", "torch"} <= set(manifest["versions"])
    assert run.trajectories.is_dir()
    assert run.checkpoints.is_dir()
    assert run.evals.is_dir()


def test_an_existing_run_is_never_written_over(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "demo", CONFIG).close()
    with pytest.raises(UsageError, match=r"not empty; continue it with `practicum resume .*demo`"):
        RunFolder.create(tmp_path, "demo", CONFIG)
    assert free_name(tmp_path, "demo") == "demo-2"
    assert free_name(tmp_path, "other") == "other"


def test_an_empty_folder_and_one_left_by_a_killed_create_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path, "empty", CONFIG).close()
    RunFolder.create(tmp_path, "half", CONFIG).close()
    (tmp_path / "half" / "manifest.json").unlink()  # it is written last
    RunFolder.create(tmp_path, "half", CONFIG).close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="already exists"):
        RunFolder.create(tmp_path, "mine", CONFIG)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 101, "sp\u202eed"])
def test_names_that_would_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        RunFolder.create(tmp_path, name, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_run_gets_a_hint(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "demo", CONFIG).close()
    with pytest.raises(UsageError, match=r"is no run\. Did you mean 'demo'\?"):
        RunFolder.open(tmp_path / "dmeo")
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match=r"is not a run folder \(it has no manifest.json\)"):
        RunFolder.open(tmp_path / "other")
    with pytest.raises(UsageError, match="There is no run in"):
        RunFolder.open(tmp_path / "nowhere" / "demo")


def test_another_format_is_refused_by_both_numbers(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "demo", CONFIG)
    run.close()
    path = run.path / "manifest.json"
    path.write_text(json.dumps(dict(run.manifest()) | {"format": 12}))
    with pytest.raises(UsageError, match="has format 12, this version reads 1"):
        RunFolder.open(run.path)


def test_a_mangled_configuration_names_the_file_and_key(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "demo", CONFIG) as run:
        (run.path / "config.json").write_text('{"sede": 3}')
        with pytest.raises(
            UsageError, match=r"config.json: unknown key 'sede'. Did you mean 'seed'"
        ):
            run.config()


def test_one_run_has_one_owner_but_many_readers(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "demo", CONFIG) as run:
        RunFolder.open(run.path)
        with pytest.raises(UsageError, match=f"belongs to the running process {os.getpid()}"):
            RunFolder.open(run.path, own=True)
    with RunFolder.open(run.path, own=True):
        pass


_OWNER = """
import sys, time
from pathlib import Path
from practicum.observe.run_folder import RunFolder
run = RunFolder.open(Path(sys.argv[1]), own=True)
print("owned", flush=True)
time.sleep(600)
"""


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "demo", RunConfig())
    run.close()
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "owned\n"
    with pytest.raises(UsageError, match=f"belongs to the running process {owner.pid}"):
        RunFolder.open(run.path, own=True)
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    RunFolder.open(run.path, own=True).close()


_PARENT = """
import os, signal, sys, time
from pathlib import Path
from practicum.observe.run_folder import RunFolder
run = RunFolder.open(Path(sys.argv[1]), own=True)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "demo", RunConfig())
    run.close()
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(UsageError, match="belongs to the running process"):
            RunFolder.open(run.path, own=True)
        parent.kill()
        parent.wait()
        RunFolder.open(run.path, own=True).close()
        os.kill(child, 0)  # the child is still there
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_run_keeps_its_kind_and_trains_if_it_names_none(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "warm", CONFIG, kind="sft").close()
    assert RunFolder.open(tmp_path / "warm").kind == "sft"
    RunFolder.create(tmp_path, "demo", CONFIG).close()
    run = RunFolder.open(tmp_path / "demo")
    assert run.manifest()["kind"] == run.kind == "train"
    older = {name: value for name, value in run.manifest().items() if name != "kind"}
    (run.path / "manifest.json").write_text(json.dumps(older))
    assert run.kind == "train"


@pytest.mark.parametrize("content", ["", "[]", '"text"', "{"])
def test_a_mangled_manifest_is_named(tmp_path: Path, content: str) -> None:
    RunFolder.create(tmp_path, "demo", CONFIG).close()
    (tmp_path / "demo" / "manifest.json").write_text(content)
    with pytest.raises(StoreError, match=r"cannot read .*demo/manifest\.json"):
        RunFolder.open(tmp_path / "demo")
