"""Files that are whole or absent."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from practicum.errors import StoreError
from practicum.observe.files import create_file, remove_unfinished, replace_file, torn_bytes


def test_creating_never_overwrites_and_leaves_nothing_behind(tmp_path: Path) -> None:
    create_file(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def test_of_many_threads_that_create_one_file_one_wins(tmp_path: Path) -> None:
    winners: list[bytes] = []
    barrier = threading.Barrier(8)

    def create(content: bytes) -> None:
        barrier.wait()
        try:
            create_file(tmp_path / "a", content)
            winners.append(content)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(bytes([i]) * 1000,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners == [(tmp_path / "a").read_bytes()]


def test_replacing_swaps_the_whole_content(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"long content")
    replace_file(tmp_path / "a", b"short")
    assert (tmp_path / "a").read_bytes() == b"short"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*nowhere/a: No such file"):
        create_file(tmp_path / "nowhere" / "a", b"")


def test_only_what_is_unfinished_is_removed(tmp_path: Path) -> None:
    for name in ("a", "a.tmp-12ab", "b.tmp-00ff"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "model.tmp-1234" / "deep").mkdir(parents=True)
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("content", "torn"), [(b"", 0), (b"a\n", 0), (b"a\nbc", 2), (b"abc", 3), (b"\n", 0)]
)
def test_torn_bytes(tmp_path: Path, content: bytes, torn: int) -> None:
    (tmp_path / "a").write_bytes(content)
    assert torn_bytes(tmp_path / "a") == torn
    assert torn_bytes(tmp_path / "none") == 0
