"""A model is in the cache whole or not at all, and is built once."""

import contextlib
import threading
from pathlib import Path

import pytest

from practicum.errors import InfraError
from practicum.policy.model.cache import cache_folder, keep_model, kept_model


def write_two_files(folder: Path) -> None:
    (folder / "weights").write_text("0.5")
    (folder / "words").write_text("one two")


def test_the_place_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PRACTICUM_CACHE")
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/.cache/practicum")


def test_what_was_built_is_kept(tmp_path: Path) -> None:
    assert kept_model("m", tmp_path) is None
    folder = keep_model("m", write_two_files, tmp_path)
    assert folder == tmp_path / "models" / "m"
    assert kept_model("m", tmp_path, verify=True) == folder
    assert (folder / "words").read_text() == "one two"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write_two_files(folder)
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        keep_model("m", fail, tmp_path)
    assert kept_model("m", tmp_path) is None
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".m.lock"]


def test_two_at_once_build_once(tmp_path: Path) -> None:
    num_builds: list[int] = []
    both_build = threading.Barrier(2)

    def build(folder: Path) -> None:
        num_builds.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_build.wait(timeout=0.3)  # time enough for the other to begin, if it could
        write_two_files(folder)

    def keep() -> None:
        keep_model("m", build, tmp_path)

    threads = [threading.Thread(target=keep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_builds == [1]
    assert kept_model("m", tmp_path)


def test_a_shortened_file_is_noticed_and_replaced(tmp_path: Path) -> None:
    folder = keep_model("m", write_two_files, tmp_path)
    (folder / "words").write_text("one")
    assert kept_model("m", tmp_path) is None
    keep_model("m", write_two_files, tmp_path)
    assert (folder / "words").read_text() == "one two"


def test_a_changed_file_is_noticed_by_its_digest(tmp_path: Path) -> None:
    folder = keep_model("m", write_two_files, tmp_path)
    (folder / "words").write_text("one tow")
    assert kept_model("m", tmp_path) == folder
    assert kept_model("m", tmp_path, verify=True) is None
    keep_model("m", write_two_files, tmp_path, verify=True)
    assert kept_model("m", tmp_path, verify=True) == folder


def test_a_missing_or_senseless_manifest_means_not_there(tmp_path: Path) -> None:
    folder = keep_model("m", write_two_files, tmp_path)
    for content in ("", "[]", '{"files": 3}', '{"files": {"words": 1}}'):
        (folder / "manifest.json").write_text(content)
        assert kept_model("m", tmp_path) is None
    (folder / "manifest.json").unlink()
    assert kept_model("m", tmp_path) is None


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where a folder should be")
    with pytest.raises(InfraError, match=f"cannot write the model cache {tmp_path}"):
        keep_model("m", write_two_files, tmp_path)
