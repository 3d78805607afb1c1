"""Durability, duplicates, the index as a cache, and what readers see."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from practicum.errors import StoreError, UsageError
from practicum.observe.files import DamagedWarning
from practicum.observe.segments import decode_segment, encode_segment
from practicum.observe.store import TrajectoryStore
from practicum.types import Message, Outcome
from practicum.verdicts import Group

MakeGroup = Callable[..., Group]


def index_of(store: TrajectoryStore) -> tuple[object, object]:
    return store._index.rows(), store._index.segments()


def test_a_group_comes_back_as_it_went_in(tmp_path: Path, make_group: MakeGroup) -> None:
    group = make_group("g1")
    store = TrajectoryStore(tmp_path)
    store.append(group)
    store.close()
    assert TrajectoryStore(tmp_path).group("g1") == group


def test_the_columns_are_readable_without_practicum(tmp_path: Path, make_group: MakeGroup) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("g1", version=3))
    (segment,) = (tmp_path / "segments").glob("*.parquet")
    rows = parquet.read_table(segment).to_pylist()
    assert [row["response"] for row in rows] == ["7", "8", ""]
    assert [row["reward"] for row in rows] == [1.0, 0.0, None]
    assert [row["failure_kind"] for row in rows] == [None, None, "sandbox_lost"]
    assert rows[0]["prompt"] == "3+4="
    assert rows[0]["version_min"] == rows[0]["version_max"] == 3
    assert rows[0]["token_ids"] == b"".join(t.to_bytes(4, "little") for t in b"3+4=7")
    assert rows[0]["loss_mask"] == b"\0\0\0\0\1"
    assert rows[0]["segment_lengths"] == [5]


def test_the_same_group_twice_counts_once(tmp_path: Path, make_group: MakeGroup) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("g1"))
    store.append(make_group("g1", generate_s=9.0))  # a repetition takes another time
    assert len(list((tmp_path / "segments").iterdir())) == 1
    assert store.superseded() == []


def test_other_content_under_one_id_counts_as_the_newest_and_is_recorded(
    tmp_path: Path, make_group: MakeGroup
) -> None:
    store = TrajectoryStore(tmp_path)
    old, new = make_group("g1", answers=("8", "8")), make_group("g1", answers=("7",))
    store.append(old)
    store.append(make_group("g2"))
    store.append(new)
    assert store.group("g1") == new
    assert len(store.rows()) == 4
    (replaced,) = store.superseded()
    assert decode_segment((tmp_path / "segments" / replaced.name).read_bytes()) == old
    store.append(old)
    assert store.group("g1") == old


def test_a_rebuilt_index_equals_the_grown_one(tmp_path: Path, make_group: MakeGroup) -> None:
    store = TrajectoryStore(tmp_path)
    for number in range(6):
        store.append(make_group(f"g{number % 4}", answers=("7",) * (number + 1)))
    grown = index_of(store)
    store.rebuild_index()
    assert index_of(store) == grown
    store.close()
    (tmp_path / "index.sqlite").unlink()
    assert index_of(TrajectoryStore(tmp_path)) == grown


@pytest.mark.parametrize("damage", [b"", b"not a database at all, but long enough" * 100])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, make_group: MakeGroup, damage: bytes) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("g1"))
    grown = index_of(store)
    store.close()
    (tmp_path / "index.sqlite").write_bytes(damage)
    assert index_of(TrajectoryStore(tmp_path)) == grown


def test_an_index_of_another_format_is_rebuilt(tmp_path: Path, make_group: MakeGroup) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("g1"))
    store.close()
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        connection.execute("pragma user_version = 99")
    assert len(TrajectoryStore(tmp_path).rows()) == 3


def test_flipped_bytes_are_named_and_never_decoded(tmp_path: Path, make_group: MakeGroup) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("g1"))
    store.append(make_group("g2"))
    victim = min((tmp_path / "segments").iterdir())
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(StoreError, match=victim.name):
        store.group("g1")
    with pytest.warns(DamagedWarning, match=victim.name):
        store.rebuild_index()
    assert {row.group_id for row in store.rows()} == {"g2"}
    assert victim.with_suffix(".damaged").exists()


def test_readers_filter_by_domain_outcome_and_step(tmp_path: Path, make_group: MakeGroup) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("g1"))
    store.append(make_group("g2", domain="reversal", prompt="abc"))
    store.append(make_group("g3"))
    store.commit(0, ["g2", "g1"])
    assert [row.group_id for row in store.rows(domain="reversal")] == ["g2"] * 3
    lost = list(store.trajectories(outcome=Outcome.INFRA_FAILURE))
    assert [(attempt.trajectory.id, attempt.step) for attempt in lost] == [
        ("g1-2", 0), ("g2-2", 0), ("g3-2", None),
    ]  # fmt: skip
    assert lost[0].verdict is None
    assert {row.group_id for row in store.rows(step=0)} == {"g1", "g2"}
    assert store.rows(step=7) == []


def test_one_trajectory_is_found_by_the_beginning_of_its_id(
    tmp_path: Path, make_group: MakeGroup
) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("abc"))
    store.append(make_group("abd"))
    assert store.trajectory("abc-1").trajectory.sample == 1
    assert store.trajectory("abd-1").verdict is not None
    with pytest.raises(UsageError, match="several trajectories begin with 'ab'"):
        store.trajectory("ab")
    with pytest.raises(UsageError, match="Did you mean 'abd-2'"):
        store.trajectory("abd-22")
    with pytest.raises(UsageError, match="no group 'abx'"):
        store.group("abx")


def test_training_on_what_was_not_stored_is_refused(tmp_path: Path, make_group: MakeGroup) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(make_group("g1"))
    with pytest.raises(StoreError, match="never stored, such as g2"):
        store.commit(0, ["g1", "g2"])


def test_a_resumed_run_has_the_digest_of_an_uninterrupted_one(
    tmp_path: Path, make_group: MakeGroup
) -> None:
    straight = TrajectoryStore(tmp_path / "straight")
    for step in range(4):
        straight.append(make_group(f"g{step}"))
        straight.commit(step, [f"g{step}"])
    broken = TrajectoryStore(tmp_path / "broken")
    for step in range(3):
        broken.append(make_group(f"g{step}", generate_s=1.0))
        broken.commit(step, [f"g{step}"])
    broken.close()
    resumed = TrajectoryStore(tmp_path / "broken")
    resumed.rewind(2)
    assert resumed.digest() != straight.digest()
    for step in (2, 3):
        resumed.append(make_group(f"g{step}", generate_s=2.0))
        resumed.commit(step, [f"g{step}"])
    assert resumed.digest() == straight.digest()


def test_threads_append_at_once(tmp_path: Path, make_group: MakeGroup) -> None:
    store = TrajectoryStore(tmp_path)

    def append(number: int) -> None:
        for index in range(5):
            store.append(make_group(f"g{number}-{index}"))

    threads = [threading.Thread(target=append, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({row.group_id for row in store.rows()}) == 30
    sequences = [entry.sequence for entry in store._index.segments()]
    assert sequences == list(range(30))


def test_a_reader_beside_the_writer_sees_what_is_durable_and_changes_nothing(
    tmp_path: Path, make_group: MakeGroup
) -> None:
    writer = TrajectoryStore(tmp_path)
    writer.append(make_group("g1"))
    (tmp_path / "segments" / "x.parquet.tmp-00").write_bytes(b"half")
    before = sorted(path.name for path in (tmp_path / "segments").iterdir())
    reader = TrajectoryStore(tmp_path, read_only=True)
    writer.append(make_group("g2"))
    assert {row.group_id for row in reader.rows()} == {"g1"}
    assert len(TrajectoryStore(tmp_path, read_only=True).rows()) == 6
    assert set(before) < {path.name for path in (tmp_path / "segments").iterdir()}
    assert TrajectoryStore(tmp_path / "nothing", read_only=True).rows() == []
    assert not (tmp_path / "nothing").exists()


def test_lone_surrogates_do_not_lose_a_group(tmp_path: Path, make_group: MakeGroup) -> None:
    group = make_group("g1", answers=("7",))
    message = Message("assistant", "\udfff7")
    odd = dataclasses.replace(group.trajectories[0], messages=(message,))
    store = TrajectoryStore(tmp_path)
    store.append(dataclasses.replace(group, trajectories=(odd,)))
    assert store.group("g1").trajectories[0].response == "\ufffd7"


_WRITER = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("builders", sys.argv[2])
builders = importlib.util.module_from_spec(spec)
sys.modules["builders"] = builders
spec.loader.exec_module(builders)
from practicum.observe.store import TrajectoryStore
store = TrajectoryStore(Path(sys.argv[1]))
number = len({row.group_id for row in store.rows()})
while True:
    name = f"g{number}"
    store.append(builders._make_group(name, answers=("7" * 200, "8")))
    print(name, flush=True)
    number += 1
"""


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """SIGKILL at arbitrary moments, most of them inside an append; then the next writer goes on."""
    acknowledged: set[str] = set()
    folder = tmp_path / "store"
    builders = str(Path(__file__).with_name("conftest.py"))
    for round in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(folder), builders],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(3 + 2 * round):
            acknowledged.add(writer.stdout.readline().strip())
        os.kill(writer.pid, signal.SIGKILL)
        rest, _ = writer.communicate()
        acknowledged |= {line for line in rest.split("\n")[:-1] if line}
        store = TrajectoryStore(folder)
        kept = {row.group_id for row in store.rows()}
        assert acknowledged <= kept
        assert len(kept - acknowledged) <= round + 1
        for group_id in kept:
            assert store.group(group_id).trajectories[0].response == "7" * 200
        assert not list((folder / "segments").glob("*.tmp-*"))
        grown = index_of(store)
        store.rebuild_index()
        assert index_of(store) == grown
        store.close()


def test_a_full_disk_is_said_plainly_and_loses_nothing_stored(
    tiny_disk: Path, make_group: MakeGroup
) -> None:
    store = TrajectoryStore(tiny_disk / "store")
    stored: list[str] = []

    def fill() -> None:
        for number in range(10_000):
            store.append(make_group(f"g{number}", prompt=os.urandom(2000).hex()))
            stored.append(f"g{number}")

    with pytest.raises(StoreError, match=r"No space left on device; free some space|disk is full"):
        fill()
    store.close()
    assert stored
    assert not list((tiny_disk / "store" / "segments").glob("*.tmp-*"))
    saved = tiny_disk.parent / "saved"
    shutil.copytree(tiny_disk / "store", saved)
    assert set(stored) <= {row.group_id for row in TrajectoryStore(saved).rows()}


def test_a_group_encodes_to_the_same_bytes_each_time(make_group: MakeGroup) -> None:
    assert encode_segment(make_group("g1")) == encode_segment(make_group("g1"))
