"""Requests collect what was sampled."""

import pytest

from policy.engine.paper import request
from practicum.types import StopReason, WeightVersion


def test_everything_known_of_a_token_is_kept_side_by_side() -> None:
    asked = request([1, 2], max_new_tokens=3)
    asked.push(5, -0.5, WeightVersion(7))
    asked.push(6, -1.5, WeightVersion(8), log_kept_mass=-0.25)
    assert asked.token_ids == [5, 6]
    assert asked.logprobs == [-0.5, -1.5]
    assert asked.versions == [7, 8]
    assert asked.log_kept_mass == [0.0, -0.25]
    assert asked.num_left == 1


def test_a_completion_that_ended_takes_no_more_tokens() -> None:
    asked = request([1])
    asked.stop_reason = StopReason.EOS
    with pytest.raises(AssertionError, match="ended"):
        asked.push(5, 0.0, WeightVersion(0))


def test_requests_that_ask_the_same_are_not_the_same() -> None:
    assert len({request([1]), request([1])}) == 2
