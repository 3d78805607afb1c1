import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from practicum.errors import UsageError
from practicum.policy.engine.adapters.mirror import Mirror
from practicum.policy.train.trainer import Publisher
from practicum.protocols import Completion, Sampling
from practicum.testing import FakePolicy
from practicum.types import Message, WeightVersion


class Elsewhere:
    """An engine that keeps what it is given to load."""

    def __init__(self) -> None:
        self._policy = FakePolicy(lambda prompt, rng: "7")
        self.loaded: list[tuple[int, str]] = []
        self.name, self.context_length = "elsewhere", 64

    @property
    def version(self) -> WeightVersion:
        return self._policy.version

    def why_not_trainable(self, sampling: Sampling) -> str | None:
        return "top_k is cut" if sampling.top_k else None

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self._policy.render(messages)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        return await self._policy.generate(prompt_ids, sampling)

    async def update_weights(self, folder: Path, version: int) -> None:
        self.loaded.append((version, (folder / "weights").read_text()))
        self._policy.publish(WeightVersion(version))


async def test_what_the_trainer_publishes_is_loaded_and_the_folder_goes(tmp_path: Path):
    engine, weights = Elsewhere(), "old"

    def write(folder: Path) -> None:
        (folder / "weights").write_text(weights)

    mirror = Mirror(engine, write, tmp_path)
    assert isinstance(mirror, Publisher)
    for version, weights in enumerate(["first", "second"], start=1):  # noqa: B007
        await asyncio.to_thread(mirror.publish, WeightVersion(version))
        assert mirror.version == version
        done = await mirror.generate([5], Sampling(4))
        assert done.versions == (version,)
    assert engine.loaded == [(1, "first"), (2, "second")]
    assert not list(tmp_path.iterdir())


async def test_samples_that_cannot_be_trained_on_are_refused(tmp_path: Path):
    mirror = Mirror(Elsewhere(), lambda folder: None, tmp_path)
    with pytest.raises(UsageError, match="cannot be trained with this sampling: top_k is cut"):
        await mirror.generate([5], Sampling(4, top_k=3))


async def test_publishing_on_the_event_loop_is_a_mistake_not_a_standstill(tmp_path: Path):
    mirror = Mirror(Elsewhere(), lambda folder: None, tmp_path)
    with pytest.raises(AssertionError, match="blocks"):
        mirror.publish(WeightVersion(1))
