"""A request's random numbers depend on its seed and their place, however they are asked for."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from practicum.policy.engine.uniforms import WINDOW, Stream, uniforms


@settings(deadline=None)
@given(st.integers(-5, 2**70), st.integers(0, 3000), st.integers(1, 50))
def test_any_stretch_is_that_of_the_whole_stream(seed: int, start: int, count: int) -> None:
    whole = uniforms(seed, start + count)
    assert uniforms(seed, count, start).tolist() == whole[start:].tolist()


@settings(deadline=None)
@given(st.integers(0, 2**64), st.lists(st.integers(0, 500), max_size=20))
def test_a_stream_gives_each_number_in_any_order(seed: int, places: list[int]) -> None:
    stream, whole = Stream(seed), uniforms(seed, 501)
    assert [stream[place] for place in places] == [whole[place] for place in places]


def test_a_number_far_ahead_needs_none_before_it() -> None:
    assert 0.0 <= Stream(3)[10**15] < 1.0


def test_neighbouring_seeds_are_independent_and_uniform() -> None:
    numbers = np.array([uniforms(seed, 1, start=100)[0] for seed in range(5000)])
    assert stats.kstest(numbers, "uniform").pvalue > 0.01
    assert abs(stats.pearsonr(numbers[:-1], numbers[1:]).statistic) < 0.05


def test_what_is_coming_is_what_comes() -> None:
    stream = Stream(seed=11)
    for index in (0, 5, WINDOW - 2, WINDOW, 3 * WINDOW + 1, 1):
        coming = stream.coming(index, 8)
        assert 1 <= len(coming) <= 8
        assert coming == uniforms(11, len(coming), start=index).tolist()
    assert len(stream.coming(WINDOW - 8, 8)) == 8
