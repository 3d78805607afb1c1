"""Sandboxes for the tests: real ones, or a skip that says what this machine lacks."""

from collections.abc import Iterator

import pytest

from practicum.environment.sandbox import capabilities
from practicum.environment.sandbox.local import LocalSandboxPool


@pytest.fixture(scope="session")
def isolated() -> None:
    """Asked for by every test that needs namespaces."""
    found = capabilities()
    if found.isolation != "namespaces":
        pytest.skip(f"no isolated sandboxes here: {found.missing}")


@pytest.fixture(scope="session")
def pool(isolated: None) -> Iterator[LocalSandboxPool]:
    """One pool for all tests, each of which runs on an event loop of its own."""
    pool = LocalSandboxPool()
    yield pool
    pool.close()


@pytest.fixture
def new_pool(isolated: None) -> Iterator[LocalSandboxPool]:
    """A pool for a test that ends or breaks it."""
    pool = LocalSandboxPool()
    yield pool
    pool.close()
