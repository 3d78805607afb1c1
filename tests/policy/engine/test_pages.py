"""Holders are counted exactly, and idle pages go in order of their last use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.policy.engine.pages import Pages, Slots, num_pages


def test_tokens_fill_pages_of_thirty_two() -> None:
    assert [num_pages(n) for n in (0, 1, 32, 33, 64, 65)] == [0, 1, 1, 2, 2, 3]


def test_a_page_is_free_again_once_its_last_holder_lets_go() -> None:
    pages = Pages(2)
    page = pages.take()
    pages.share(page)
    pages.release(page)
    assert pages.num_free == 1
    pages.release(page)
    assert pages.num_free == 2
    with pytest.raises(AssertionError, match="free already"):
        pages.release(page)


def test_a_page_that_only_the_tree_holds_is_available_longest_unused_first() -> None:
    pages = Pages(3)
    taken = [pages.take() for _ in range(3)]
    for page in taken:
        pages.enter_tree(page)
    assert pages.num_available == 0
    for page in reversed(taken):
        pages.release(page)
    assert (pages.num_free, pages.num_available) == (0, 3)
    assert list(pages.idle) == taken[::-1]
    pages.touch(taken[2])
    pages.share(taken[1])
    assert list(pages.idle) == [taken[0], taken[2]]
    pages.leave_tree(taken[0])
    assert (pages.num_free, pages.num_available) == (1, 2)


def test_the_check_notices_a_lost_page() -> None:
    pages = Pages(2)
    page = pages.take()
    pages.check({page: 1}, set())
    with pytest.raises(AssertionError, match="counts"):
        pages.check({}, set())


@given(st.lists(st.sampled_from(["take", "share", "release"]), max_size=40))
def test_slots_are_reused_before_new_ones_are_made(operations: list[str]) -> None:
    slots, held = Slots(limit=2), list[int]()
    most = 0
    for operation in operations:
        if operation == "take":
            slot = slots.take()
            assert slot not in held
            held.append(slot)
        elif held and operation == "share":
            slots.share(held[0])
            held.append(held[0])
        elif held:
            slots.release(held.pop())
        most = max(most, len(set(held)))
        assert slots.num_used == len(set(held))
        assert slots.has_room == (len(set(held)) < 2)
        assert all(slot < most for slot in held)
    slots.check({slot: held.count(slot) for slot in held})
