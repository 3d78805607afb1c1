"""Shares hold over every window, floors hold always."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.config import with_floor
from practicum.environment.curriculum.mixture import Mixture
from practicum.errors import UsageError

SHARES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.floats(0.01, 100.0), min_size=1, max_size=8
)
FLOORS = st.floats(0.0, 0.125)


@given(shares=SHARES, floor=FLOORS, start=st.integers(0, 150), length=st.integers(1, 150))
def test_in_any_window_each_domain_is_less_than_two_slots_off_its_share(
    shares: dict[str, float], floor: float, start: int, length: int
) -> None:
    mixture = Mixture(shares, floor)
    window = [mixture.domain_of(slot) for slot in range(start, start + length)]
    for domain, share in mixture.shares.items():
        assert abs(window.count(domain) - share * length) < 2


@given(shares=SHARES, floor=FLOORS)
def test_from_the_start_each_domain_is_less_than_one_slot_off_its_share(
    shares: dict[str, float], floor: float
) -> None:
    mixture = Mixture(shares, floor)
    counts = dict.fromkeys(mixture.domains, 0)
    for num_slots in range(1, 200):
        counts[mixture.domain_of(num_slots - 1)] += 1
        for domain, share in mixture.shares.items():
            assert abs(counts[domain] - share * num_slots) < 1


@given(shares=SHARES, floor=FLOORS)
def test_shares_sum_to_1_keep_the_floor_and_keep_their_order(
    shares: dict[str, float], floor: float
) -> None:
    floored = with_floor(shares, floor)
    assert sum(floored.values()) == 1
    assert min(floored.values()) >= Fraction(floor)
    ranked = sorted(shares, key=lambda domain: shares[domain])
    assert [floored[domain] for domain in ranked] == sorted(floored.values())


def test_a_small_share_is_raised_and_the_others_give_way_in_proportion() -> None:
    floored = with_floor({"a": 60.0, "b": 30.0, "c": 0.001}, floor=0.1)
    assert [float(floored[domain]) for domain in "abc"] == pytest.approx([0.6, 0.3, 0.1])


@pytest.mark.parametrize("num", [3, 10, 49])
def test_floors_that_add_up_to_1_leave_equal_shares(num: int) -> None:
    floored = with_floor({f"d{i}": 1.0 + i for i in range(num)}, floor=1 / num)
    assert sum(floored.values()) == 1
    assert [float(share) for share in floored.values()] == pytest.approx([1 / num] * num)


@given(slots=st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_the_domain_of_a_slot_does_not_depend_on_what_was_asked_before(slots: list[int]) -> None:
    shares = {"a": 3.0, "b": 2.0, "c": 1.5}
    mixture = Mixture(shares)
    assert [mixture.domain_of(slot) for slot in slots] == [
        Mixture(dict(reversed(shares.items()))).domain_of(slot) for slot in slots
    ]


def test_equal_shares_take_turns() -> None:
    mixture = Mixture({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    assert "".join(mixture.domain_of(slot) for slot in range(8)) == "abcdabcd"


@pytest.mark.parametrize(
    ("shares", "floor"),
    [
        ({}, 0.0),
        ({"a": 0.0}, 0.0),
        ({"a": -1.0, "b": 2.0}, 0.0),
        ({"a": float("nan")}, 0.0),
        ({"a": float("inf")}, 0.0),
        ({"a": 1.0, "b": 1.0}, 0.51),
    ],
)
def test_shares_that_make_no_sense_are_refused(shares: dict[str, float], floor: float) -> None:
    with pytest.raises(UsageError):
        Mixture(shares, floor)
