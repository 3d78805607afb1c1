"""pass@k against enumeration and its known values."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.statistics import all_pass_at_k, mean_pass_at_k, pass_at_k


@given(st.integers(1, 9), st.data())
def test_both_agree_with_enumerating_every_subset(n: int, data: st.DataObject) -> None:
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    attempts = [1] * correct + [0] * (n - correct)
    subsets = list(combinations(attempts, k))
    assert pass_at_k(n, correct, k) == pytest.approx(np.mean([any(s) for s in subsets]))
    assert all_pass_at_k(n, correct, k) == pytest.approx(np.mean([all(s) for s in subsets]))


def test_it_is_unbiased_where_the_plug_in_is_not() -> None:
    counts = np.random.default_rng(0).binomial(10, 0.1, size=20_000)
    truth = 1 - 0.9**5
    assert np.mean([pass_at_k(10, int(c), 5) for c in counts]) == pytest.approx(truth, abs=0.01)
    assert abs(np.mean(1 - (1 - counts / 10) ** 5) - truth) > 0.05


def test_the_mean_over_tasks_carries_an_interval() -> None:
    interval = mean_pass_at_k({"a": (8, 0), "b": (8, 8), "c": (8, 4)}, k=1)
    assert interval.mean == pytest.approx(0.5)
    assert interval.n == 3
    assert interval.low < 0.5 < interval.high


def test_more_than_was_sampled_is_undefined_not_zero() -> None:
    with pytest.raises(ValueError, match="pass@10 of 1 attempts is undefined"):
        pass_at_k(1, 1, 10)
    with pytest.raises(ValueError, match="impossible"):
        pass_at_k(3, 4, 1)
