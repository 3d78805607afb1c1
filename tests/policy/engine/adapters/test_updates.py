import asyncio

import pytest

from practicum.errors import InfraError, PolicyDead, UsageError
from practicum.policy.engine.adapters.updates import Weights


class Controls:
    def __init__(self, fails: str = "") -> None:
        self.did: list[str] = []
        self.fails = fails

    def _do(self, what: str) -> None:
        self.did.append(what)
        if what == self.fails:
            raise InfraError(f"{what} failed")

    async def pause(self) -> None:
        self._do("pause")

    async def label(self, version: int) -> None:
        self._do(f"label {version}")

    async def resume(self) -> None:
        self._do("resume")

    async def give_up(self) -> None:
        self._do("give up")


async def test_requests_wait_at_the_door_until_the_new_weights_are_in():
    weights, controls = Weights("e", 0), Controls()
    async with weights.changing(1, controls):
        waiting = asyncio.create_task(weights.enter())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert controls.did == ["pause"]
    assert await waiting == weights.version == 1
    assert controls.did == ["pause", "label 1", "resume"]


@pytest.mark.parametrize("fails", ["load", "label 1", "resume"])
async def test_after_a_failed_update_nothing_more_is_sampled(fails: str):
    weights, controls = Weights("e", 0), Controls(fails)

    async def update() -> None:
        async with weights.changing(1, controls):
            if fails == "load":
                raise InfraError("a file is missing")

    with pytest.raises(PolicyDead, match="could not be updated to version 1"):
        await update()
    assert controls.did[-1] == "give up"
    with pytest.raises(PolicyDead, match="start it again"):
        await weights.enter()


async def test_an_engine_that_cannot_be_paused_goes_on_with_its_weights():
    weights = Weights("e", 0)
    change = weights.changing(1, Controls("pause"))
    with pytest.raises(InfraError, match="pause failed"):
        await change.__aenter__()
    assert await weights.enter() == 0


async def test_one_update_at_a_time():
    weights = Weights("e", 0)
    async with weights.changing(1, Controls()):
        second = weights.changing(2, Controls())
        with pytest.raises(UsageError, match="already"):
            await second.__aenter__()
    assert weights.version == 1
