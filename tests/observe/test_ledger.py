"""A group is trained on once per lineage; going back marks, and never deletes."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from practicum.errors import StoreError, UsageError
from practicum.observe.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def test_commits_are_there_after_reopening_in_the_order_of_training(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").commit(0, ["z", "a", "m"])
    reopened = Ledger(tmp_path / "ledger.sqlite")
    assert reopened.groups(0) == ["z", "a", "m"]
    assert reopened.groups(1) is None
    assert list(reopened.steps().items()) == [("z", 0), ("a", 0), ("m", 0)]


def test_repeating_a_commit_changes_nothing_and_altering_it_is_refused(ledger: Ledger) -> None:
    ledger.commit(0, ["a", "b"])
    ledger.commit(0, ["a", "b"])
    with pytest.raises(StoreError, match="already committed with other groups"):
        ledger.commit(0, ["b", "a"])
    assert ledger.groups(0) == ["a", "b"]


def test_a_group_is_never_trained_on_by_two_steps(ledger: Ledger) -> None:
    ledger.commit(0, ["a"])
    with pytest.raises(StoreError, match="group a of step 1 was already trained on by step 0"):
        ledger.commit(1, ["b", "a"])
    assert ledger.groups(1) is None  # the whole commit was refused, b included
    ledger.commit(1, ["b"])
    with pytest.raises(StoreError, match="names a group twice"):
        ledger.commit(2, ["c", "c"])


def test_a_step_without_groups_is_a_commit_too(ledger: Ledger) -> None:
    ledger.commit(0, [])
    assert ledger.groups(0) == []


def test_after_a_rewind_the_same_groups_may_be_trained_on_again(ledger: Ledger) -> None:
    for step in range(4):
        ledger.commit(step, [f"g{step}"])
    ledger.rewind(2)
    assert ledger.steps() == {"g0": 0, "g1": 1}
    assert ledger.rewound() == [(2, "g2"), (3, "g3")]
    ledger.commit(2, ["g3"])
    assert ledger.groups(2) == ["g3"]
    assert ledger.rewound() == [(2, "g2"), (3, "g3")]


def test_of_many_threads_that_claim_one_group_one_wins(ledger: Ledger) -> None:
    refused: list[int] = []
    barrier = threading.Barrier(8)

    def claim(step: int) -> None:
        barrier.wait()
        try:
            ledger.commit(step, ["wanted", f"own-{step}"])
        except StoreError:
            refused.append(step)

    threads = [threading.Thread(target=claim, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert len(ledger.steps()) == 2


def test_a_reader_sees_the_state_when_it_opened_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    writer = Ledger(path)
    writer.commit(0, ["a"])
    reader = Ledger(path, read_only=True)
    writer.commit(1, ["b"])
    assert reader.steps() == {"a": 0}
    assert Ledger(tmp_path / "none.sqlite", read_only=True).steps() == {}
    assert not (tmp_path / "none.sqlite").exists()


def test_another_format_is_refused_by_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("pragma user_version = 9")
    with pytest.raises(UsageError, match="ledger format 9, this version reads 1"):
        Ledger(path)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_damaged_ledger_is_named(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database, but long enough to be taken for one" * 40)
    with pytest.raises(StoreError, match=r"cannot open the ledger .*ledger\.sqlite"):
        Ledger(path, read_only=read_only)
