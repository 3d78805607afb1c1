"""A swap folder that is really full: who cannot be moved stays, is computed again, or fails."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum.errors import InfraError
from practicum.policy.engine import Engine
from practicum.policy.model.tokens import Tokens

from .alone import small_tokens
from .crowd import (
    CALLS,
    MODEL,
    PAGE_BYTES,
    answers,
    check_nothing_fails,
    check_only_the_outdated_fail,
    scarce_engine,
)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return small_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own for so many pages, and half a page more."""
    size = f"size={int((request.param + 0.5) * PAGE_BYTES)}"
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.parametrize(("disk", "swap_pages"), [(0, 0), (1, 100), (3, 1)], indirect=["disk"])
def test_a_full_disk_changes_no_answer(tokens: Tokens, disk: Path, swap_pages: int) -> None:
    happened = check_nothing_fails(tokens, disk, swap_pages)
    assert not happened.lost_requests
    assert happened.preemptions + happened.restarts > 10, happened


@pytest.mark.parametrize("disk", [0, 1], indirect=True)
def test_of_what_can_neither_be_moved_nor_computed_again_no_more_fails_than_must(
    tokens: Tokens, disk: Path
) -> None:
    assert 0 < check_only_the_outdated_fail(tokens, disk) < 10


@pytest.mark.parametrize("disk", [0], indirect=True)
async def test_callers_hear_of_a_fault_of_the_machine_and_the_engine_lives_on(
    tokens: Tokens, disk: Path
) -> None:
    """The weights stay what they are and change their number, so that answers can be compared."""
    ample, engine = Engine(MODEL, tokens, name="ample"), scarce_engine(tokens, disk)
    expected = await answers(ample)
    calls = [asyncio.ensure_future(engine.generate(*call)) for call in CALLS]
    while not all(call.done() for call in calls):
        engine.publish(engine.version + 1)
        await asyncio.sleep(0.005)
    failures = [call.exception() for call in calls]
    assert any(failures)
    for call, failure, right in zip(calls, failures, expected, strict=True):
        if failure is None:
            assert call.result().token_ids == right.token_ids
        else:
            assert type(failure) is InfraError
            assert "had to make room for others" in str(failure)
    assert [one.token_ids for one in await answers(engine)] == [one.token_ids for one in expected]


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_is_a_full_disk_too(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from policy.engine.alone import small_tokens\n"
        "from policy.engine.crowd import check_nothing_fails, check_only_the_outdated_fail\n"
        "import resource, sys\n"
        "folder = Path(sys.argv[1])\n"
        "tokens = small_tokens(folder)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "assert not check_nothing_fails(tokens, folder, 0).lost_requests\n"
        "assert check_only_the_outdated_fail(tokens, folder) > 0\n"
    )
    tests = str(Path(__file__).parents[2])
    paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", script, str(tmp_path), str(PAGE_BYTES // 2)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
