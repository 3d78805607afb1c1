"""Which pages of key and value memory are taken, and by how many holders. Numbers, no tensors.

A page holds the keys and values of 32 tokens at consecutive positions, aligned to a multiple of 32.
A sequence and a node of the prefix tree count as one holder each. A page that only the tree holds
is *idle*: it still serves later requests, and may be taken from the tree when nothing is free.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

PAGE = 32
"""Tokens in a page."""

RETRY_STEPS = 32
"""After so many steps a full disk is tried again: others write to it and delete from it too."""

Save = Callable[[int, int, bool], bool]
"""(page, slot, exact): keep the page's contents in the slot, without `exact` those that are coded
alone. False if there is no room for them."""


def nowhere(page: int, slot: int, exact: bool) -> bool:
    """A `Save` for pools that have nothing outside."""
    return False


def num_pages(num_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens, counted from position 0."""
    return -(-num_tokens // PAGE)


class Pages:
    """The pages of the pool, the memory that attention reads."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.counts = [0] * total
        """Holders of each page."""
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Pages that only the tree holds, longest unused first."""
        self._free = list(range(total - 1, -1, -1))
        self._in_tree = bytearray(total)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Pages that can be had without taking them from a sequence."""
        return len(self._free) + len(self.idle)

    def take(self) -> int:
        """A free page, now with one holder."""
        page = self._free.pop()
        self.counts[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more holder."""
        assert self.counts[page] > 0, f"page {page} is free"
        self.counts[page] += 1
        self.idle.pop(page, None)

    def release(self, page: int) -> None:
        """One holder less; without any, the page is free."""
        count = self.counts[page] = self.counts[page] - 1
        assert count >= 0, f"page {page} was free already"
        if count == 0:
            self.idle.pop(page, None)
            self._free.append(page)
        elif count == 1 and self._in_tree[page]:
            self.idle[page] = None

    def enter_tree(self, page: int) -> None:
        """The tree becomes one more holder."""
        self.share(page)
        assert not self._in_tree[page], f"page {page} is in the tree already"
        self._in_tree[page] = True

    def leave_tree(self, page: int) -> None:
        """The tree is a holder no more."""
        self._in_tree[page] = False
        self.idle.pop(page, None)
        self.release(page)

    def touch(self, page: int) -> None:
        """It was of use just now: if idle, it is the last to go."""
        if page in self.idle:
            self.idle.move_to_end(page)

    def check(self, holders: dict[int, int], in_tree: set[int]) -> None:
        """Assert that counts are exactly those of the holders, and nothing is lost."""
        assert {page: n for page, n in enumerate(self.counts) if n} == holders, "wrong counts"
        assert sorted([*self._free, *holders]) == list(range(self.total)), "a page is lost or twice"
        assert {page for page, flag in enumerate(self._in_tree) if flag} == in_tree
        assert set(self.idle) == {page for page in in_tree if holders[page] == 1}, "wrong idle set"


class Slots:
    """Places for pages outside the pool: host memory or a file.

    `limit` binds what is merely kept for later. Pages of sequences that must go on are taken in
    beyond it, as long as there is room at all.
    """

    def __init__(self, limit: int, save: Save = nowhere) -> None:
        self.limit = limit
        self.save = save
        self.is_full = False
        """Whether nothing can be saved at present, as far as is known: the last try failed, and no
        slot has been given back since."""
        self._counts: dict[int, int] = {}
        self._free: list[int] = []
        self._steps_full = 0

    @property
    def num_used(self) -> int:
        return len(self._counts)

    @property
    def has_room(self) -> bool:
        return len(self._counts) < self.limit

    def fill(self, page: int, *, exact: bool = False) -> int | None:
        """Save a page; its slot, now with one holder, or None if there is no room."""
        slot = self.take()
        self.is_full = not self.save(page, slot, exact)
        if not self.is_full:
            return slot
        self._steps_full = 0
        del self._counts[slot]
        self._free.insert(0, slot)  # the last to be tried again: others have their place already
        return None

    def begin_step(self) -> None:
        """A step has passed: now and then try again what failed."""
        self._steps_full += 1
        if self._steps_full >= RETRY_STEPS:
            self.is_full = False

    def take(self) -> int:
        """A free slot, now with one holder; a new number if all so far are in use."""
        slot = self._free.pop() if self._free else len(self._counts)
        self._counts[slot] = 1
        return slot

    def share(self, slot: int) -> None:
        """One more holder."""
        self._counts[slot] += 1

    def release(self, slot: int) -> None:
        """One holder less; without any, the slot is free."""
        self._counts[slot] -= 1
        if self._counts[slot] == 0:
            del self._counts[slot]
            self._free.append(slot)
            self.is_full = False

    def check(self, holders: dict[int, int]) -> None:
        """Assert that counts are exactly those of the holders, and nothing is lost."""
        assert self._counts == holders, "wrong counts of slots"
        known = sorted([*self._free, *holders])
        assert known == list(range(len(known))), "a slot is lost or twice"
