"""Beginnings that were computed before: a radix tree over pages, for reuse, parking and swapping.

A node is one page. What a page contains is determined by the tokens up to its end and by the
weights that each was computed with, so this is its key: tokens and *eras* (an era is the time
between two changes of the weights). New work finds only what was computed entirely in the current
era. A node's contents are in a page of the pool or, swapped out, in a slot.

A preempted sequence pins its nodes: they may be swapped out, but never dropped; where there is no
room outside they stay. So preemption cannot change a completion, not even when the weights change
in the meantime.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from practicum.policy.engine.counters import Counters
from practicum.policy.engine.pages import PAGE, Pages, Slots


class PageKey(NamedTuple):
    """What one page holds, given the pages before it."""

    tokens: tuple[int, ...]
    """At most 32; only a full page has successors."""
    eras: int | tuple[int, ...]
    """Era of all of them, or of each where they differ."""


@dataclass(slots=True, eq=False)
class Node:
    """One page's worth of tokens after those of its ancestors."""

    key: PageKey
    parent: Node | None
    page: int | None = None
    slot: int | None = None
    """Where its contents are: exactly one of page and slot (neither in a root)."""
    pins: int = 0
    """Preempted sequences that need it; its ancestors have at least as many."""
    children: dict[PageKey, Node] = field(default_factory=dict[PageKey, "Node"])

    def subtree(self) -> Iterator[Node]:
        """This node and all below it."""
        todo: list[Node] = [self]
        while todo:
            node = todo.pop()
            yield node
            todo.extend(node.children.values())


class Match(NamedTuple):
    """The longest beginning that is in the tree."""

    nodes: list[Node]
    num_tokens: int
    """Where it ends; of the last node's tokens possibly only the first few."""


_ROOT = PageKey((), 0)


class PrefixTree:
    """Nodes for every salt, in fast memory and in slots, least recently used first to go."""

    def __init__(self, pages: Pages, slots: Slots, counters: Counters) -> None:
        self.pages = pages
        self.slots = slots
        self.era = 0
        self._counters = counters
        self._roots: dict[tuple[str, ...], Node] = {}
        self._of_page: dict[int, Node] = {}
        self._swapped: OrderedDict[Node, None] = OrderedDict()
        """Unpinned nodes in slots, longest unused first."""

    def __contains__(self, page: int) -> bool:
        return page in self._of_page

    def num_tokens(self, page: int) -> int:
        """How many tokens in a page are kept here; 0 for none."""
        node = self._of_page.get(page)
        return 0 if node is None else len(node.key.tokens)

    def match(self, salt: tuple[str, ...], tokens: array[int], limit: int) -> Match:
        """The longest beginning of `tokens[:limit]` that was computed in the current era."""
        node = self._roots.get(salt)
        nodes: list[Node] = []
        start = 0
        while node is not None and start < limit:
            key = PageKey(tuple(tokens[start : min(start + PAGE, limit)]), self.era)
            child = node.children.get(key)
            if child is None or len(key.tokens) < PAGE:
                partial, num_equal = _closest(node.children.values(), key)
                if partial is not None:
                    nodes.append(partial)
                return Match(nodes, start + num_equal)
            nodes.append(child)
            node = child
            start += PAGE
        return Match(nodes, start)

    def insert(
        self, salt: tuple[str, ...], keys: list[PageKey], pages: Iterable[int]
    ) -> list[Node]:
        """Keep pages with these contents; returns the nodes, old or new, that now stand for them.

        For a last page that is not full this may be a node that holds more than was asked for.
        """
        node = self._roots.setdefault(salt, Node(_ROOT, None))
        nodes: list[Node] = []
        for key, page in zip(keys, pages):
            child = node.children.get(key)
            if child is None and len(key.tokens) < PAGE:
                closest, num_equal = _closest(node.children.values(), key)
                child = closest if num_equal == len(key.tokens) else None
            if child is None:
                child = self._of_page.get(page)
                if child is None:
                    child = Node(key, node)
                    self._place(child, page)
                else:  # the page was kept when it held fewer tokens
                    del node.children[child.key]
                    child.key = key
                node.children[key] = child
            elif child.slot is not None and child.key == key and page not in self:
                self._leave_slot(child)  # back for nothing
                self._place(child, page)
            nodes.append(child)
            node = child
        return nodes

    def pin(self, nodes: list[Node]) -> None:
        """Keep these (a node and all its ancestors) until they are unpinned."""
        for node in nodes:
            node.pins += 1
            self._swapped.pop(node, None)

    def unpin(self, nodes: list[Node]) -> None:
        """One sequence less that needs these; what nobody can match any more is dropped."""
        for node in reversed(nodes):
            node.pins -= 1
            if node.pins:
                continue
            if node.key.eras != self.era:
                self._drop(node)
            elif node.slot is not None:
                self._swapped[node] = None
        self.trim()

    def can_evict(self, page: int) -> bool:
        """Whether `evict` can be expected to succeed."""
        return not (self.slots.is_full and self._of_page[page].pins) or bool(self._swapped)

    def evict(self, page: int) -> bool:
        """Take a page from the tree: its contents go to a slot if they may, else they are dropped.

        False if neither can be: a sequence under way needs them, and there is no room outside.
        Others that hold the page keep it.
        """
        node = self._of_page[page]
        if not self.slots.has_room and self._swapped:
            self._drop_longest_unused()
            if page not in self._of_page:  # it was below the dropped one
                return True
        worth_saving = node.pins or (self.slots.has_room and not self.slots.is_full)
        if worth_saving and self._move_out(node):
            return True
        while node.pins and self._swapped:  # what is merely kept gives way to what is under way
            self._drop_longest_unused()
            if self._move_out(node):
                return True
        if not node.pins:
            self._counters.dropped_pages += self._drop(node)
        return not node.pins

    def forget(self, page: int, pins: int = 0) -> bool:
        """Leave a page to its only other holder, who has so many pins on it; drop all below it.

        False, and nothing changed, if others need it too.
        """
        node = self._of_page.get(page)
        if node is None or node.pins > pins or self.pages.counts[page] > 2:
            return False
        node.pins = 0
        self._drop(node)
        return True

    def restore(self, node: Node, page: int) -> int:
        """Bring a pinned node back to a page; returns the slot, which the caller now holds."""
        assert node.pins
        assert node.slot is not None
        slot = node.slot
        node.slot = None
        self._place(node, page)
        return slot

    def trim(self) -> None:
        """Drop the longest unused swapped nodes while there are more than the limit allows."""
        while self._swapped and self.slots.num_used > self.slots.limit:
            self._drop_longest_unused()

    def next_era(self) -> None:
        """The weights have changed: drop all that no sequence under way needs."""
        self.era += 1
        for root in self._roots.values():
            for node in list(root.subtree()):
                if node.parent is not None and not node.pins and node.key in node.parent.children:
                    self._drop(node)
        self._roots = {salt: root for salt, root in self._roots.items() if root.children}

    def _move_out(self, node: Node) -> bool:
        assert node.page is not None
        node.slot = self.slots.fill(node.page)
        if node.slot is None:
            return False
        self._counters.swapped_out_pages += 1
        if not node.pins:
            self._swapped[node] = None
        self._leave_page(node)
        return True

    def _drop_longest_unused(self) -> None:
        self._counters.dropped_pages += self._drop(next(iter(self._swapped)))

    def _place(self, node: Node, page: int) -> None:
        self.pages.enter_tree(page)
        self._of_page[page] = node
        node.page = page

    def _leave_page(self, node: Node) -> None:
        assert node.page is not None
        del self._of_page[node.page]
        self.pages.leave_tree(node.page)
        node.page = None

    def _leave_slot(self, node: Node) -> None:
        assert node.slot is not None
        self._swapped.pop(node, None)
        self.slots.release(node.slot)
        node.slot = None

    def _drop(self, top: Node) -> int:
        """Forget a node and all below it; returns how many."""
        assert top.parent is not None
        del top.parent.children[top.key]
        dropped = list(top.subtree())
        for node in dropped:
            assert not node.pins, "a pinned node was dropped"
            if node.page is not None:
                self._leave_page(node)
            else:
                self._leave_slot(node)
            node.children = {}
        return len(dropped)

    def check(self, pins: dict[Node, int]) -> tuple[set[int], dict[int, int]]:
        """Assert that the tree is sound; returns its pages, and its slots with their holders."""
        slots: dict[int, int] = {}
        found: dict[Node, None] = {}
        for root in self._roots.values():
            for node in root.subtree():
                if node.parent is None:
                    continue
                found[node] = None
                assert node.parent.children[node.key] is node
                assert not node.children or len(node.key.tokens) == PAGE
                assert (node.page is None) != (node.slot is None)
                assert node.pins == pins.get(node, 0), "wrong number of pins"
                assert node.pins or node.key.eras == self.era, "nobody can match this"
                if node.slot is not None:
                    slots[node.slot] = slots.get(node.slot, 0) + 1
                    assert (node in self._swapped) == (node.pins == 0)
        assert set(pins) <= set(found), "a pinned node is not in the tree"
        assert all(node in found for node in self._swapped)
        pages = {node.page: node for node in found if node.page is not None}
        assert pages == self._of_page
        return set(pages), slots


def _closest(nodes: Iterable[Node], key: PageKey) -> tuple[Node | None, int]:
    """The node that shares most first tokens with the key (of the same era), and how many."""
    best, most, wanted = None, 0, key.tokens
    for node in nodes:
        tokens = node.key.tokens
        if most == len(wanted):
            break
        # There can be thousands of nodes, and one look at most: who has another token where the
        # best so far ends does not beat it.
        if len(tokens) <= most or tokens[most] != wanted[most] or node.key.eras != key.eras:
            continue
        common = next(
            (i for i, (a, b) in enumerate(zip(tokens, wanted)) if a != b),
            min(len(tokens), len(wanted)),
        )
        if common > most:
            best, most = node, common
    return best, most
