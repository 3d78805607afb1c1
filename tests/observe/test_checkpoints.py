"""A checkpoint is whole or absent, whatever is killed, torn, flipped or full."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.errors import StoreError, UsageError
from practicum.observe.checkpoints import Checkpoints, latest_checkpoint, verify
from practicum.observe.files import DamagedWarning


def write(folder: Path) -> None:
    (folder / "weights").mkdir()
    (folder / "weights" / "model.safetensors").write_bytes(b"weights" * 1000)
    (folder / "optimizer.safetensors").write_bytes(b"moments" * 1000)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "ckpt", keep=2)


def test_what_was_saved_is_found_again(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest() is None
    checkpoints.save(15, write, {"next_slot": 180, "curriculum": {"rates": [0.1, 0.2]}})
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 15
    assert latest.state == {"next_slot": 180, "curriculum": {"rates": [0.1, 0.2]}}
    assert (latest.folder / "weights" / "model.safetensors").stat().st_size == 7000


def test_only_the_newest_are_kept(checkpoints: Checkpoints) -> None:
    for step in (1, 2, 3, 4):
        checkpoints.save(step, write, {})
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["000003", "000004"]


@pytest.mark.parametrize(
    "victim", ["weights/model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("damage", ["torn", "flipped", "missing"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(
    checkpoints: Checkpoints, victim: str, damage: str
) -> None:
    checkpoints.save(1, write, {"at": 1})
    checkpoints.save(2, write, {"at": 2})
    path = checkpoints.folder / "000002" / victim
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0x20
        path.write_bytes(content)
    with pytest.warns(DamagedWarning, match="000002.*falling back"):
        latest = checkpoints.latest()
    assert latest is not None
    assert latest.state == {"at": 1}


def test_a_file_that_nobody_listed_is_damage_too(checkpoints: Checkpoints) -> None:
    saved = checkpoints.save(1, write, {})
    (saved.folder / "weights" / "planted.bin").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"weights/planted\.bin"):
        verify(saved.folder)


def test_going_on_from_an_older_one_replaces_the_damaged_and_drops_the_later(
    checkpoints: Checkpoints,
) -> None:
    checkpoints.save(10, write, {"lineage": "old"})
    checkpoints.save(20, write, {"lineage": "old"})
    (checkpoints.folder / "000020" / "state.json").write_text("{")
    checkpoints.save(15, write, {"lineage": "new"})
    latest = checkpoints.latest()  # no warning: the damaged later one is gone
    assert latest is not None
    assert latest.step == 15
    checkpoints.save(20, write, {"lineage": "new"})
    checkpoints.save(20, write, {"lineage": "newer"})
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.state == {"lineage": "newer"}


def test_a_failing_writer_leaves_no_trace_and_the_old_one_intact(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, write, {})

    def fail(folder: Path) -> None:
        write(folder)
        raise RuntimeError("the trainer broke")

    with pytest.raises(RuntimeError, match="the trainer broke"):
        checkpoints.save(2, fail, {})
    assert [path.name for path in checkpoints.folder.iterdir()] == ["000001"]
    assert checkpoints.latest() is not None


def test_another_format_is_refused_by_both_numbers(checkpoints: Checkpoints) -> None:
    saved = checkpoints.save(1, write, {})
    manifest = json.loads((saved.folder / "manifest.json").read_text())
    (saved.folder / "manifest.json").write_text(json.dumps(manifest | {"format": 7}))
    with pytest.raises(UsageError, match="has format 7, this version reads 1"):
        checkpoints.latest()


def test_leftovers_are_cleaned_by_the_owner_and_left_alone_by_readers(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    Checkpoints(folder, keep=1).save(1, write, {})
    (folder / "000002.tmp-0badcafe").mkdir()
    shutil.copytree(folder / "000001", folder / "000003.replaced")
    assert latest_checkpoint(folder) is not None
    assert len(list(folder.iterdir())) == 3
    Checkpoints(folder, keep=1)
    # 3 was renamed away and its successor never arrived: it is put back.
    assert sorted(path.name for path in folder.iterdir()) == ["000001", "000003"]


def test_too_little_room_is_said_before_anything_is_written(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, write, {})
    with pytest.raises(StoreError, match=r"needs about \d+ MB, but only \d+ MB are free"):
        checkpoints.save(2, write, {}, estimate_bytes=1 << 60)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["000001"]


def test_a_disk_that_fills_up_while_writing_keeps_the_old_one(tiny_disk: Path) -> None:
    checkpoints = Checkpoints(tiny_disk / "ckpt", keep=2)
    checkpoints.save(1, write, {"at": 1})

    def too_much(folder: Path) -> None:
        (folder / "weights").write_bytes(bytes(4 << 20))

    with pytest.raises(StoreError, match="No space left on device; free some space"):
        checkpoints.save(2, too_much, {})
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.state == {"at": 1}
    assert [path.name for path in checkpoints.folder.iterdir()] == ["000001"]
    checkpoints.save(2, write, {"at": 2})


_SAVER = """
import sys
from pathlib import Path
from practicum.observe.checkpoints import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
latest = checkpoints.latest()
step = latest.step if latest else 0
while True:
    step += 1
    def write(folder):
        for number in range(6):
            (folder / f"{number}.bin").write_bytes(step.to_bytes(4, "little") * 20_000)
    checkpoints.save(step, write, {"step": step})
    print(step, flush=True)
"""


def test_a_killed_writer_always_leaves_a_good_one(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    last = 0
    for round in range(6):
        saver = subprocess.Popen(
            [sys.executable, "-c", _SAVER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert saver.stdout is not None
        for _ in range(2 + round):
            last = int(saver.stdout.readline())
        os.kill(saver.pid, signal.SIGKILL)
        rest, _ = saver.communicate()
        last = max([last, *(int(line) for line in rest.split("\n")[:-1] if line)])
        latest = latest_checkpoint(folder)
        assert latest is not None
        assert latest.step in (last, last + 1)
        content = (latest.folder / "5.bin").read_bytes()
        assert content == latest.step.to_bytes(4, "little") * 20_000
