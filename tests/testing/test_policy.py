"""The fake policy keeps the promises that tests of staleness rest on."""

from practicum.sampling import Sampling
from practicum.testing import FakePolicy
from practicum.types import WeightVersion


async def test_a_straggler_bears_the_version_that_it_began_with() -> None:
    async def overtaken(prompt: str) -> None:
        policy.publish(WeightVersion(3))

    policy = FakePolicy(lambda prompt, rng: "abc", before=overtaken)
    completion = await policy.generate([1], Sampling(max_new_tokens=3))
    assert completion.versions == (0, 0, 0)
    assert policy.version == 3
