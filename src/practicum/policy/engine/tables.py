"""The page tables of sequences: from admission over growth, forking and parking to the end.

Everything that moves page contents is written into a `Step`, in an order in which no move destroys
what another one still reads. Two things make that so: pages are found for a sequence before it is
decided where to copy from, and a slot that is read in a step stays taken until the step has run.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from practicum.policy.engine.blocks import Blocks
from practicum.policy.engine.counters import Counters
from practicum.policy.engine.pages import PAGE, Pages, Slots, num_pages
from practicum.policy.engine.prefix import Match, PrefixTree
from practicum.policy.engine.request import Request
from practicum.policy.engine.sequence import Sequence
from practicum.policy.engine.step import Step


class PageTables:
    """Pages, slots and the tree of one engine, and who holds what."""

    def __init__(
        self, num_pages: int, num_slots: int, counters: Counters, blocks: Blocks = Blocks()
    ) -> None:
        self.blocks = blocks
        self.pages = Pages(num_pages)
        self.slots = Slots(num_slots)
        self.tree = PrefixTree(self.pages, self.slots, counters)
        self._counters = counters
        self._slots_being_read: list[int] = []

    def begin_step(self) -> None:
        """The step before has run."""
        for slot in self._slots_being_read:
            self.slots.release(slot)
        self._slots_being_read.clear()

    def open(self, sequence: Sequence, headroom: int, step: Step) -> bool:
        """Give a waiting sequence pages for all its tokens, those computed before with contents.

        False, and nothing changed, unless `headroom` more pages can be had.
        """
        match = self._match(sequence)
        num_full = match.num_tokens // PAGE
        full, partial = match.nodes[:num_full], match.nodes[num_full:]
        resident = [node.page for node in full if node.page is not None]
        num_idle = sum(self.pages.counts[page] == 1 for page in resident)
        num_fresh = num_pages(len(sequence.tokens)) - len(resident)
        if num_fresh + headroom > self.pages.num_available - num_idle:
            return False
        if not sequence.is_parked:  # else they are pinned already
            self.tree.pin(match.nodes)
        for page in resident:
            self.pages.share(page)
        # Nothing that matched can be lost now, but what is not in `resident` may be swapped out.
        fresh = self._take(num_fresh, step)
        for node in full:
            if node.page is None:
                page = fresh.pop()
                self._load(self.tree.restore(node, page), page, step)
                sequence.pages.append(page)
            else:
                sequence.pages.append(node.page)
        for node in partial:  # at most one; copied, because it will be written behind its beginning
            self._duplicate(node.page, node.slot, fresh[-1], step)
            sequence.pages.append(fresh.pop())
        for slot in sequence.parked_slots:
            self._load(slot, fresh[-1], step)
            step.exact_slots.add(slot)
            sequence.pages.append(fresh.pop())
        sequence.pages.extend(fresh)
        self.tree.unpin(match.nodes)
        self._begin(sequence, match)
        return True

    def num_known(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that need not be computed."""
        return self._match(sequence).num_tokens

    def _match(self, sequence: Sequence) -> Match:
        if sequence.is_parked:
            return Match(sequence.parked, sequence.num_computed)
        nodes, end = self.tree.match(sequence.salt, sequence.tokens, len(sequence.tokens) - 1)
        end = self.blocks.reusable(end)
        return Match(nodes[: num_pages(end)], end)

    def _begin(self, sequence: Sequence, match: Match) -> None:
        if sequence.is_parked:
            sequence.parked, sequence.parked_slots = [], []
            return
        if match.num_tokens:
            sequence.computed(match.num_tokens, self.tree.era)
            self._counters.hits += 1
            self._counters.reused_tokens += match.num_tokens
        self._counters.sequences += 1
        for request in sequence.requests:
            request.reused_tokens = match.num_tokens

    def _duplicate(self, source: int | None, slot: int | None, target: int, step: Step) -> None:
        """Fill a page with the contents of a node, which stays as it is."""
        if source is not None:
            # A page that is itself filled in this step is so after the copies: use its slot again.
            slot = next((s for s, page in step.swap_in if page == source), None)
            if slot is None:
                self.pages.touch(source)
                step.copies.append((source, target))
                return
        assert slot is not None
        self.slots.share(slot)
        self._load(slot, target, step)

    def _load(self, slot: int, page: int, step: Step) -> None:
        """Read a slot of which we are a holder."""
        step.swap_in.append((slot, page))
        self._slots_being_read.append(slot)

    def _take(self, count: int, step: Step) -> list[int]:
        """Free pages, evicting idle ones if need be."""
        while self.pages.num_free < count:
            move = self.tree.evict(next(iter(self.pages.idle)))
            if move is not None:
                step.swap_out.append(move)
        return [self.pages.take() for _ in range(count)]

    def is_writable(self, sequence: Sequence, end: int) -> bool:
        """Whether the sequence may write its next tokens, those before `end`, where they belong."""
        pages = sequence.pages
        return end <= len(pages) * PAGE and not self._is_shared(
            pages[sequence.num_computed // PAGE]
        )

    def make_writable(self, sequence: Sequence, end: int, step: Step) -> bool:
        """Add pages up to `end`, and copy the page to be written if others hold it too.

        False, and nothing changed but what is in the tree, if too few pages can be had.
        """
        index = sequence.num_computed // PAGE
        page = sequence.pages[index] if index < len(sequence.pages) else None
        num_new = max(num_pages(end) - len(sequence.pages), 0)
        shared = page is not None and self._is_shared(page)
        if num_new + shared > self.pages.num_available:
            return False
        fresh = self._take(num_new + shared, step)
        if shared:
            assert page is not None
            sequence.pages[index] = fresh.pop()
            step.copies.append((page, sequence.pages[index]))
            self.pages.release(page)
        sequence.pages.extend(fresh)
        return True

    def _is_shared(self, page: int) -> bool:
        """Whether another sequence reads what would be written. What the tree keeps of a page that
        is being filled are its first tokens, and those are not written again."""
        return self.pages.counts[page] > 1 + (page in self.tree)

    def fork(self, sequence: Sequence, requests: list[Request], token_id: int) -> Sequence:
        """A branch that shares all pages until it writes."""
        branch = sequence.fork(requests, token_id)
        for page in branch.pages:
            self.pages.share(page)
        return branch

    def is_shareable(self, sequence: Sequence) -> bool:
        """Whether all that was computed of it was so with the weights of now."""
        return not sequence.eras or sequence.of_one_era(self.tree.era)

    def keep(self, sequence: Sequence, end: int) -> None:
        """Let later requests find the first `end` tokens, if they were computed in this era."""
        end = self.blocks.reusable(end)
        if end and sequence.of_one_era(self.tree.era):
            self.tree.insert(sequence.salt, sequence.page_keys(end), sequence.pages)

    def park(self, sequence: Sequence, step: Step) -> None:
        """Leave the pages to the tree, to be had back unchanged; unfinished ones go to slots."""
        end = self.blocks.finished(sequence.num_computed)
        sequence.parked = self.tree.insert(sequence.salt, sequence.page_keys(end), sequence.pages)
        self.tree.pin(sequence.parked)
        for page in sequence.pages[num_pages(end) : num_pages(sequence.num_computed)]:
            slot = self.slots.take()
            step.swap_out.append((page, slot))
            step.exact_slots.add(slot)
            sequence.parked_slots.append(slot)
        self._release_pages(sequence)

    def close(self, sequence: Sequence) -> None:
        """The sequence is over, running or parked."""
        self._release_pages(sequence)
        self.tree.unpin(sequence.parked)
        for slot in sequence.parked_slots:
            self.slots.release(slot)
        sequence.parked, sequence.parked_slots = [], []

    def _release_pages(self, sequence: Sequence) -> None:
        for page in reversed(sequence.pages):  # what depends on others is evicted before them
            self.pages.release(page)
        sequence.pages = array("i")

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that every page and slot is held by exactly those who think so."""
        sequences = list(sequences)
        pins = Counter(node for sequence in sequences for node in sequence.parked)
        in_tree, slots = self.tree.check(pins)
        holders = Counter(page for sequence in sequences for page in sequence.pages)
        holders.update(in_tree)
        self.pages.check(holders, in_tree)
        parked = [slot for sequence in sequences for slot in sequence.parked_slots]
        self.slots.check(dict(Counter(slots) + Counter(parked) + Counter(self._slots_being_read)))
        for sequence in sequences:
            assert sequence.num_computed < len(sequence.tokens)
            assert not (sequence.pages and sequence.is_parked)
            room = len(sequence.pages or [*sequence.parked, *sequence.parked_slots]) * PAGE
            assert sequence.num_computed <= room
