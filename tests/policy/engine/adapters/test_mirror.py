import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from practicum.errors import PolicyDead, UsageError
from practicum.policy.engine.adapters.answers import Answer
from practicum.policy.engine.adapters.exactness import Scale
from practicum.policy.engine.adapters.home import Home
from practicum.policy.engine.adapters.mirror import Mirror
from practicum.policy.engine.adapters.remote import RemotePolicy
from practicum.policy.engine.adapters.updates import Weights
from practicum.policy.model.tokens import Tokens
from practicum.policy.train.trainer import Publisher
from practicum.sampling import Sampling
from practicum.types import WeightVersion


@dataclass
class Elsewhere:
    """An engine that keeps what it is given to load, and who asked it from where."""

    loaded: list[str] = field(default_factory=list[str])
    threads: set[str] = field(default_factory=set[str])
    cache_keys: list[str] = field(default_factory=list[str])
    closed: bool = False
    answers: asyncio.Event | None = None

    async def ask(self, prompt_ids: Sequence[int], sampling: Sampling, cache_key: str) -> Answer:
        self.threads.add(threading.current_thread().name)
        self.cache_keys.append(cache_key)
        if self.answers is not None:
            await self.answers.wait()
        return Answer([7] * sampling.max_new_tokens, [-0.5] * sampling.max_new_tokens, "length",
                      None, None)  # fmt: skip

    async def pause(self) -> None:
        self.threads.add(threading.current_thread().name)

    async def label(self, version: int) -> None: ...

    async def resume(self) -> None: ...

    async def give_up(self) -> None: ...

    def prepared(self, folder: Path) -> AbstractAsyncContextManager[Path]:
        return nullcontext(folder)

    async def load(self, folder: Path) -> None:
        self.loaded.append((folder / "weights").read_text())

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()


def remote(wire: Elsewhere, tokens: Tokens, scale: Scale = Scale.DRAWN) -> RemotePolicy:
    return RemotePolicy("elsewhere", tokens, 64, scale, Weights("elsewhere", 0), wire)


async def test_what_the_trainer_publishes_is_loaded_and_the_folder_goes(
    tmp_path: Path, tokens: Tokens, home: Home
):
    wire, weights = Elsewhere(), "old"

    def write(folder: Path) -> None:
        (folder / "weights").write_text(weights)

    mirror = Mirror(remote(wire, tokens), write, home, tmp_path)
    assert isinstance(mirror, Publisher)
    for version, weights in enumerate(["first", "second"], start=1):  # noqa: B007
        await asyncio.to_thread(mirror.publish, WeightVersion(version))
        assert mirror.version == version
        done = await mirror.generate([5], Sampling(4))
        assert done.versions == (version,) * 4
    assert wire.loaded == ["first", "second"]
    assert len(set(wire.cache_keys)) == 2, "weights of two versions share keys and values"
    assert not list(tmp_path.iterdir())


async def test_samples_that_cannot_be_trained_on_are_refused(
    tmp_path: Path, tokens: Tokens, home: Home
):
    mirror = Mirror(remote(Elsewhere(), tokens), lambda folder: None, home, tmp_path)
    with pytest.raises(UsageError, match="cannot be trained with this sampling: it does not rep"):
        await mirror.generate([5], Sampling(4, top_k=3))


def test_every_caller_reaches_the_engine_on_its_own_loop(
    tmp_path: Path, tokens: Tokens, home: Home
):
    wire = Elsewhere()
    mirror = Mirror(
        remote(wire, tokens), lambda folder: (folder / "weights").touch(), home, tmp_path
    )

    async def ask_and_publish() -> None:
        await mirror.generate([5], Sampling(1))
        mirror.publish(WeightVersion(1))  # it blocks this loop, and needs nothing from it

    asyncio.run(ask_and_publish())
    asyncio.run(mirror.generate([5], Sampling(1)))  # type: ignore[arg-type]
    mirror.publish(WeightVersion(2))
    assert wire.threads == {"engine-home"}
    mirror.close()
    assert wire.closed


async def test_a_call_that_is_cancelled_is_cancelled_where_it_runs(
    tmp_path: Path, tokens: Tokens, home: Home
):
    wire = Elsewhere(answers=asyncio.Event())
    mirror = Mirror(remote(wire, tokens), lambda folder: None, home, tmp_path)
    call = asyncio.create_task(mirror.generate([5], Sampling(1)))
    while not wire.threads:
        await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    while await home.call(others()):
        await asyncio.sleep(0.001)


async def test_a_closed_home_answers_nobody_and_keeps_nobody_waiting(
    tmp_path: Path, tokens: Tokens, home: Home
):
    wire = Elsewhere(answers=asyncio.Event())
    mirror = Mirror(remote(wire, tokens), lambda folder: None, home, tmp_path)
    call = asyncio.create_task(mirror.generate([5], Sampling(1)))
    while not wire.threads:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(home.close)
    home.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(PolicyDead, match="was closed"):
        await mirror.generate([5], Sampling(1))
