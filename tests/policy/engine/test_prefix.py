"""The tree finds exactly what was computed before with the weights of now, and forgets in order."""

from array import array
from dataclasses import dataclass, field

import pytest

from policy.engine.paper import prompt
from practicum.policy.engine.counters import Counters
from practicum.policy.engine.pages import PAGE, Pages, Slots
from practicum.policy.engine.prefix import Node, PageKey, PrefixTree


@dataclass
class Forest:
    """A tree on pages of its own, filled as if by sequences that end at once."""

    num_pages: int = 8
    num_slots: int = 0
    disk: int = 100
    """Slots that there is room for"""
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.pages = Pages(self.num_pages)
        self.moves: list[tuple[int, int]] = []
        self.slots = Slots(self.num_slots, self._save)
        self.tree = PrefixTree(self.pages, self.slots, self.counters)

    def insert(self, tokens: list[int], salt: str = "", era: int | None = None) -> list[Node]:
        era = self.tree.era if era is None else era
        keys = [PageKey(tuple(tokens[i : i + PAGE]), era) for i in range(0, len(tokens), PAGE)]
        pages = [self.pages.take() for _ in keys]
        nodes = self.tree.insert((salt,), keys, pages)
        for page in reversed(pages):
            self.pages.release(page)
        return nodes

    def find(self, tokens: list[int], salt: str = "") -> int:
        return self.tree.match((salt,), array("i", tokens), len(tokens)).num_tokens

    def _save(self, page: int, slot: int, exact: bool) -> bool:
        if len({slot for _, slot in self.moves} | {slot}) > self.disk:
            return False
        self.moves.append((page, slot))
        return True

    def evict(self) -> bool:
        return self.tree.evict(next(iter(self.pages.idle)))

    def check(self, *pinned: list[Node]) -> None:
        pins: dict[Node, int] = {}
        for node in sum(pinned, list[Node]()):
            pins[node] = pins.get(node, 0) + 1
        pages, slots = self.tree.check(pins)
        self.pages.check(dict.fromkeys(pages, 1), pages)
        self.slots.check(slots)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 100])
def test_the_longest_common_beginning_is_found_to_the_token(length: int) -> None:
    forest = Forest()
    forest.insert(prompt(100))
    assert forest.find(prompt(length)) == length
    assert forest.find([*prompt(length), 9, 9]) == length
    assert forest.find([9, *prompt(length)]) == 0


def test_of_several_continuations_the_closest_is_found() -> None:
    forest = Forest()
    forest.insert(prompt(40, 9, 9, 9, 8))
    forest.insert(prompt(40, 9, 9, 7))
    match = forest.tree.match(("",), array("i", prompt(40, 9, 9, 9, 7)), 44)
    assert match.num_tokens == 43
    assert match.nodes[-1].key.tokens[-1] == 8
    forest.check()


def test_equal_beginnings_are_kept_once() -> None:
    forest = Forest()
    first = forest.insert(prompt(70))
    assert forest.insert(prompt(70)) == first
    assert forest.insert(prompt(66)) == first  # its last page is the beginning of another
    assert forest.pages.num_free == 5
    forest.check()


def test_nothing_is_shared_across_salts_or_changes_of_the_weights() -> None:
    forest = Forest()
    forest.insert(prompt(70), salt="a")
    assert forest.find(prompt(70), salt="b") == 0
    forest.tree.next_era()
    assert forest.find(prompt(70), salt="a") == 0
    assert forest.pages.num_free == 8
    forest.check()


def test_without_slots_the_longest_unused_end_is_dropped_first() -> None:
    forest = Forest()
    forest.insert(prompt(32, *[1] * 32))
    forest.insert(prompt(32, *[2] * 32))
    assert forest.evict()
    assert not forest.moves
    assert forest.find(prompt(32, *[1] * 32)) == 32
    assert forest.find(prompt(32, *[2] * 32)) == 64
    assert forest.counters.dropped_pages == 1
    forest.check()


def test_with_slots_pages_are_saved_and_come_back() -> None:
    forest = Forest(num_slots=2)
    (node,) = forest.insert(prompt(32))
    page = node.page
    assert forest.evict()
    assert forest.moves == [(page, 0)]
    assert forest.find(prompt(32)) == 32
    assert (node.page, node.slot) == (None, 0)
    page = forest.pages.take()
    forest.tree.pin([node])
    assert forest.tree.restore(node, page) == 0
    forest.slots.release(0)
    forest.pages.release(page)
    forest.tree.unpin([node])
    assert (node.page, node.slot) == (page, None)
    forest.check()


def test_computing_a_swapped_page_again_brings_it_back_for_nothing() -> None:
    forest = Forest(num_slots=2)
    (node,) = forest.insert(prompt(20))
    forest.evict()
    forest.insert(prompt(20))
    assert node.page is not None
    assert forest.slots.num_used == 0
    forest.check()


def test_a_swapped_page_is_not_replaced_by_one_that_holds_less() -> None:
    forest = Forest(num_slots=2)
    (node,) = forest.insert(prompt(20))
    forest.evict()
    assert forest.insert(prompt(10)) == [node]
    assert (node.page, node.slot) == (None, 0)
    forest.check()


def test_what_follows_a_dropped_page_goes_with_it() -> None:
    forest = Forest(num_slots=1)
    first, second = forest.insert(prompt(64))
    assert first.page is not None
    assert second.page is not None
    assert forest.tree.evict(first.page)
    assert forest.tree.evict(second.page)
    assert len(forest.moves) == 1
    assert forest.pages.num_free == 8
    assert forest.slots.num_used == 0
    forest.check()


def test_a_page_that_fills_up_stays_one_node() -> None:
    forest = Forest()
    page = forest.pages.take()
    tokens = prompt(32)
    for length in (10, 20, 32):
        (node,) = forest.tree.insert(("",), [PageKey(tuple(tokens[:length]), 0)], [page])
        assert node.page == page
        assert forest.find(tokens) == length
        assert forest.pages.counts[page] == 2
    forest.pages.release(page)
    forest.check()


def test_a_page_that_fills_up_to_what_is_swapped_out_stays_where_it_is() -> None:
    forest = Forest(num_slots=1)
    tokens = prompt(20)
    page = forest.pages.take()
    forest.tree.insert(("",), [PageKey(tuple(tokens[:10]), 0)], [page])
    (other,) = forest.insert(tokens)  # somebody else was quicker
    forest.evict()
    assert forest.tree.insert(("",), [PageKey(tuple(tokens), 0)], [page]) == [other]
    assert (other.page, other.slot) == (None, 0)
    forest.pages.release(page)
    forest.check()


def test_full_slots_lose_what_was_longest_unused() -> None:
    forest = Forest(num_slots=1)
    forest.insert([1] * 32)
    forest.insert([2] * 32)
    forest.evict()
    forest.evict()
    assert (forest.find([1] * 32), forest.find([2] * 32)) == (0, 32)
    forest.slots.limit = 0
    forest.tree.trim()
    assert forest.find([2] * 32) == 0
    forest.check()


def test_pinned_nodes_are_saved_beyond_the_limit_and_survive_new_weights() -> None:
    forest = Forest(num_slots=0)
    nodes = forest.insert(prompt(64))
    forest.insert(prompt(32, *[9] * 32))
    forest.tree.pin(nodes)
    assert all(forest.evict() for _ in range(3))
    assert len(forest.moves) == 2
    forest.tree.next_era()
    assert all(node.slot is not None for node in nodes)
    forest.check(nodes)
    forest.tree.unpin(nodes)  # nobody can match them now
    forest.check()
    assert forest.slots.num_used == 0


def test_a_page_that_a_sequence_holds_stays_its_own_when_the_tree_gives_it_up() -> None:
    forest = Forest(num_slots=1)
    page = forest.pages.take()
    forest.tree.insert(("",), [PageKey((1, 2, 3), 0)], [page])
    assert forest.tree.evict(page)
    assert forest.moves == [(page, 0)]
    assert forest.pages.counts[page] == 1
    assert page not in forest.tree
