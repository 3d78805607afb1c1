"""Real sandboxes for the tests that run hostile code; skipped where this machine can make none."""

from collections.abc import Iterator

import pytest

from practicum.environment.sandbox import open_pool
from practicum.errors import SandboxError
from practicum.protocols import SandboxPool


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[SandboxPool]:
    try:
        pool = open_pool()
    except SandboxError as error:
        pytest.skip(f"no isolated sandboxes on this machine: {error}")
    yield pool
    pool.close()
