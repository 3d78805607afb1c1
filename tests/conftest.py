"""Shared by all tests: async tests run on asyncio, and nothing reaches a model hub."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
