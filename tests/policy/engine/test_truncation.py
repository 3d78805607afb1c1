"""What is kept is what a full sort would keep, with ties broken by token id."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.policy.engine.truncation import Row, likeliest, truncate
from practicum.sampling import Sampling

coarse_logits = st.lists(st.integers(-6, 6), min_size=1, max_size=60)
fine_logits = st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=60)
logits_of_both_kinds = st.one_of(coarse_logits, fine_logits)


def kept_by(logits: list[float], **options: float) -> list[int]:
    row = np.array(logits, dtype=np.float32)
    truncate(row, Sampling(1, **options))  # pyright: ignore[reportArgumentType]
    kept = np.flatnonzero(row > -np.inf)
    assert row[kept].tolist() == [np.float32(logits[i]) for i in kept]
    return kept.tolist()


def reference(logits: Row, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The definition, by a full sort."""
    weights = np.exp(logits - logits.max()).astype(np.float64)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: top_k or len(logits)]
    total, so_far, kept = sum(weights[order]), 0.0, list[int]()
    for token in order:
        if so_far < top_p * total or top_p == 1.0:
            kept.append(token)
        so_far += weights[token]
    return sorted(token for token in kept if weights[token] >= min_p)


@settings(deadline=None)
@given(
    logits_of_both_kinds,
    st.integers(0, 70),
    st.sampled_from([1.0, 0.95001, 0.50001, 0.1001, 1e-9]),
    st.sampled_from([0.0, 0.0512, 0.5, 1.0]),
)
def test_it_keeps_what_the_definition_keeps(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    options = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    row = np.array(logits, dtype=np.float32)
    assert kept_by(logits, **options) == reference(row, top_k, top_p, min_p)


def test_of_equal_tokens_the_lower_ids_stay() -> None:
    assert kept_by([1, 2, 2, 2, 0], top_k=2) == [1, 2]
    assert kept_by([0, 0, 0, 0], top_p=0.5) == [0, 1]


def test_top_p_keeps_the_token_that_reaches_the_mass() -> None:
    half, quarter = np.log(0.5), np.log(0.25)
    assert kept_by([half, quarter, quarter], top_p=0.49) == [0]
    assert kept_by([half, quarter, quarter], top_p=0.51) == [0, 1]


def test_the_mass_of_many_unlikely_tokens_counts() -> None:
    assert kept_by(np.log([1.0, 0.9] + [0.001] * 999).tolist(), top_p=0.5) == [0, 1]


def test_tokens_forbidden_before_are_not_counted() -> None:
    row = np.array([5, -np.inf, 4, -np.inf], dtype=np.float32)
    truncate(row, Sampling(1, top_k=3, min_p=0.0))
    assert row.tolist() == [5, -np.inf, 4, -np.inf]


@settings(deadline=None)
@given(logits_of_both_kinds, st.integers(1, 70))
def test_the_likeliest_come_in_order(logits: list[float], count: int) -> None:
    row = np.array(logits, dtype=np.float32)
    expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:count]
    assert likeliest(row, count).tolist() == expected
