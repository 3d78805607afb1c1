"""Penalties and biases change the logits of the tokens they name, in the documented order."""

import numpy as np
import pytest

from practicum.policy.engine.penalties import penalise, seen_for
from practicum.sampling import Sampling

LOGITS = [2.0, -2.0, 1.0, 0.5, -0.5]


def penalised(prompt: list[int], completion: list[int], **options: object) -> list[float]:
    sampling = Sampling(9, **options)  # pyright: ignore[reportArgumentType]
    seen = seen_for(sampling, prompt)
    for token_id in completion:
        assert seen is not None
        seen.push(token_id)
    row = np.array(LOGITS, dtype=np.float32)
    penalise(row, sampling, seen)
    return row.tolist()


def test_repetition_counts_prompt_and_completion_and_always_lowers() -> None:
    assert penalised([0, 1], [2, 2], repetition_penalty=2.0) == [1.0, -4.0, 0.5, 0.5, -0.5]


def test_presence_and_frequency_count_the_completion_alone() -> None:
    assert penalised([0, 1], [2, 2, 3], presence_penalty=1.0) == [2.0, -2.0, 0.0, -0.5, -0.5]
    assert penalised([0, 1], [2, 2, 3], frequency_penalty=1.0) == [2.0, -2.0, -1.0, -0.5, -0.5]


def test_the_bias_comes_after_the_penalties() -> None:
    row = penalised([], [0], presence_penalty=1.0, logit_bias=((0, 3.0), (4, -np.inf)))
    assert row == [4.0, -2.0, 1.0, 0.5, -np.inf]


def test_repetition_comes_before_presence() -> None:
    assert penalised([], [0], repetition_penalty=2.0, presence_penalty=0.5)[0] == 0.5


@pytest.mark.parametrize("penalty", [1e300, -1e300])
def test_the_largest_penalty_leaves_no_infinity(penalty: float) -> None:
    row = penalised([], [0, 0], frequency_penalty=penalty)
    assert row[0] == (-1e9 if penalty > 0 else 1e9)
    assert row[1:] == LOGITS[1:]


def test_without_penalties_nothing_is_counted() -> None:
    assert seen_for(Sampling(9, logit_bias=((0, 1.0),)), [1, 2]) is None


def test_drafts_are_counted_on_a_copy() -> None:
    seen = seen_for(Sampling(9, presence_penalty=1.0), [1])
    assert seen is not None
    seen.push(2)
    assert seen.after([2, 3]).counts == {2: 2, 3: 1}
    assert seen.counts == {2: 1}
