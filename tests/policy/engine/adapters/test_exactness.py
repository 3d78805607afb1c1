import math
from collections.abc import Mapping

import pytest

from practicum.errors import InfraError
from practicum.policy.engine.adapters.exactness import Scale, measure, why_inexact
from practicum.sampling import Sampling

LOGITS = {11: 3.0, 12: 1.0, 13: 0.5}


def reported(temperature: float) -> dict[int | str, float]:
    total = math.log(sum(math.exp(logit / temperature) for logit in LOGITS.values()))
    return {token: logit / temperature - total for token, logit in LOGITS.items()}


@pytest.mark.parametrize("scale", [Scale.RAW, Scale.DRAWN])
async def test_asking_twice_tells_what_the_log_probs_are_of(scale: Scale):
    async def ask(temperature: float) -> Mapping[int | str, float]:
        return reported(1.0 if scale is Scale.RAW else temperature)

    assert await measure(ask, engine="e") is scale


async def test_one_token_does_not_tell():
    async def ask(temperature: float) -> Mapping[int | str, float]:
        return {11: -0.1}

    with pytest.raises(InfraError, match="cannot tell"):
        await measure(ask, engine="e")


@pytest.mark.parametrize(
    ("scale", "sampling", "exact"),
    [
        (Scale.DRAWN, Sampling(4, temperature=0.7, presence_penalty=1.0), True),
        (Scale.DRAWN, Sampling(4, top_p=0.9), False),
        (Scale.DRAWN, Sampling(4, temperature=0.0, top_k=3), True),
        (Scale.TEMPERED, Sampling(4, temperature=0.7, top_k=3, min_p=0.1), True),
        (Scale.RAW, Sampling(4), True),
        (Scale.RAW, Sampling(4, temperature=0.0), True),
        (Scale.RAW, Sampling(4, temperature=0.7), False),
        (Scale.RAW, Sampling(4, logit_bias=((3, 1.0),)), False),
        (Scale.RAW, Sampling(4, top_k=3), False),
        (Scale.NONE, Sampling(4), False),
    ],
)
def test_only_exact_log_probs_can_be_trained_on(scale: Scale, sampling: Sampling, exact: bool):
    assert (why_inexact(scale, sampling) is None) is exact
