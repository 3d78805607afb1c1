"""Shared by the tests of the adapters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from policy.engine.adapters.fake_server import FakeServer, running
from practicum.policy.model.tiny import write_tiny
from practicum.policy.model.tokens import Tokens


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "tiny"
    folder.mkdir()
    write_tiny(folder)
    return folder


@pytest.fixture(scope="session")
def tokens(tiny_folder: Path) -> Tokens:
    return Tokens(tiny_folder)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running(FakeServer()) as fake:
        yield fake
