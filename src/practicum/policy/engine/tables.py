"""The page tables of sequences: from admission over growth, forking and parking to the end.

What leaves the pool is saved at once: only then is it known whether there is room for it. All else
that moves page contents is written into a `Step`, in an order in which no move destroys what
another one still reads. Three things make that so: nothing leaves that is only being filled in this
step, pages are found for a sequence before it is decided where to copy from, and a slot that is
read in a step stays taken until the step has run.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Sequence_

from practicum.policy.engine.blocks import Blocks
from practicum.policy.engine.counters import Counters
from practicum.policy.engine.pages import PAGE, Pages, Slots, num_pages
from practicum.policy.engine.prefix import Match, Node, PrefixTree
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
        self.slots.begin_step()

    @property
    def num_available(self) -> int:
        """Pages that can be had, as far as is known, without taking them from a sequence."""
        if not self.slots.is_full:
            return self.pages.num_available
        return self.pages.num_free + sum(map(self.tree.can_evict, self.pages.idle))

    def open(self, sequence: Sequence, headroom: int, step: Step) -> bool:
        """Give a waiting sequence pages for all its tokens, those computed before with contents.

        False, and nothing changed, unless `headroom` more pages can be had.
        """
        match = self._match(sequence)
        num_full = match.num_tokens // PAGE
        full, partial = match.nodes[:num_full], match.nodes[num_full:]
        resident = [node.page for node in full if node.page is not None]
        idle = [page for page in resident if self.pages.counts[page] == 1]
        num_idle = sum(map(self.tree.can_evict, idle))
        num_fresh = num_pages(len(sequence.tokens)) - len(resident)
        if headroom and num_fresh + headroom > self.num_available - num_idle:
            return False
        if not sequence.is_parked:  # else they are pinned already
            self.tree.pin(match.nodes)
        for page in resident:
            self.pages.share(page)
        # Nothing that matched can be lost now, but what is not in `resident` may be swapped out.
        own = None
        if not self._free_up(num_fresh):
            # No room for a copy of the last page: the page itself then, if nobody else needs it.
            own = self._take_over(partial[0]) if partial and self._free_up(num_fresh - 1) else None
            if own is None:
                self._let_go(sequence, match, resident)
                return False
        fresh = [self.pages.take() for _ in range(num_fresh - (own is not None))]
        for node in full:
            if node.page is None:
                page = fresh.pop()
                self._load(self.tree.restore(node, page), page, step)
                sequence.pages.append(page)
            else:
                sequence.pages.append(node.page)
        if own is not None:
            sequence.pages.append(own)
        elif partial:  # at most one; copied, because it will be written behind its beginning
            self._duplicate(partial[0].page, partial[0].slot, fresh[-1], step)
            sequence.pages.append(fresh.pop())
        for slot in sequence.parked_slots:
            self._load(slot, fresh[-1], step)
            sequence.pages.append(fresh.pop())
        sequence.pages.extend(fresh)
        self.tree.unpin(match.nodes if own is None else full)
        self._begin(sequence, match)
        return True

    def _take_over(self, node: Node) -> int | None:
        """The page of a node that we have pinned, as its only holder; None if others need it."""
        if node.page is None:
            return None
        page = node.page
        self.pages.share(page)
        if self.tree.forget(page, pins=1):
            return page
        self.pages.release(page)
        return None

    def _let_go(self, sequence: Sequence, match: Match, resident: list[int]) -> None:
        """A waiting sequence cannot have its pages yet."""
        for page in reversed(resident):
            self.pages.release(page)
        if not sequence.is_parked:
            self.tree.unpin(match.nodes)

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
        if sequence.has_begun:
            return
        sequence.has_begun = True
        if match.num_tokens:
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

    def _free_up(self, count: int) -> bool:
        """Have so many pages free, evicting idle ones if need be; False if that is impossible."""
        if count > self.num_available:
            return False
        while self.pages.num_free < count:
            page = next(filter(self.tree.can_evict, self.pages.idle), None)
            if page is None:
                return False
            self.tree.evict(page)
        return True

    def is_writable(self, sequence: Sequence, end: int) -> bool:
        """Whether the sequence may write its next tokens, those before `end`, where they belong."""
        return end <= len(sequence.pages) * PAGE and not self._is_shared(sequence)

    def make_writable(self, sequence: Sequence, end: int, step: Step) -> bool:
        """Add pages up to `end`, and copy the page to be written if others hold it too.

        False, and nothing changed but what is in the tree, if too few pages can be had.
        """
        index = sequence.num_computed // PAGE
        num_new = max(num_pages(end) - len(sequence.pages), 0)
        shared = self._is_shared(sequence)
        if not self._free_up(num_new + shared):
            # No room for a copy: the page itself then, if only the tree shares it.
            if not shared or not self.tree.forget(sequence.pages[index]):
                return False
            shared = False
            if not self._free_up(num_new):
                return False
        fresh = [self.pages.take() for _ in range(num_new + shared)]
        if shared:
            page, sequence.pages[index] = sequence.pages[index], fresh.pop()
            step.copies.append((page, sequence.pages[index]))
            self.pages.release(page)
        sequence.pages.extend(fresh)
        return True

    def _is_shared(self, sequence: Sequence) -> bool:
        """Whether somebody else reads what the sequence would write next. What the tree keeps of a
        page are its first tokens; those may be more than the sequence has, where it parted from
        another within guesses."""
        index, offset = divmod(sequence.num_computed, PAGE)
        if index >= len(sequence.pages):
            return False
        page = sequence.pages[index]
        num_kept = self.tree.num_tokens(page)
        return self.pages.counts[page] > 1 + bool(num_kept) or num_kept > offset

    def fork(self, sequence: Sequence, requests: list[Request], new: Sequence_[int]) -> Sequence:
        """A branch whose requests drew the new tokens; it shares all pages until it writes."""
        branch = sequence.fork(requests, new, self.tree.era)
        for page in branch.pages:
            self.pages.share(page)
        return branch

    def cut(self, sequence: Sequence) -> None:
        """Let go of pages in which others have computed tokens that are not the sequence's."""
        num_own = num_pages(sequence.num_computed)
        for page in sequence.pages[num_own:]:
            self.pages.release(page)
        del sequence.pages[num_own:]

    def is_shareable(self, sequence: Sequence) -> bool:
        """Whether all that was computed of it was so with the weights of now."""
        return not sequence.eras or sequence.of_one_era(self.tree.era)

    def keep(self, sequence: Sequence, end: int) -> None:
        """Let later requests find the first `end` tokens, if they were computed in this era."""
        end = self.blocks.reusable(end)
        if end and sequence.of_one_era(self.tree.era):
            self.tree.insert(sequence.salt, sequence.page_keys(end), sequence.pages)

    def park(self, sequence: Sequence) -> bool:
        """Leave the pages to the tree, to be had back unchanged; unfinished ones go to slots.

        False, and nothing changed, if there is no room for those.
        """
        end = self.blocks.finished(sequence.num_computed)
        slots: list[int] = []
        for page in sequence.pages[num_pages(end) : num_pages(sequence.num_computed)]:
            slot = self.slots.fill(page, exact=True)
            if slot is None:
                for taken in slots:
                    self.slots.release(taken)
                return False
            slots.append(slot)
        self._counters.swapped_out_pages += len(slots)
        sequence.parked_slots = slots
        sequence.parked = self.tree.insert(sequence.salt, sequence.page_keys(end), sequence.pages)
        self.tree.pin(sequence.parked)
        self._release_pages(sequence)
        return True

    def unpark(self, sequence: Sequence) -> bool:
        """Undo `park`; False, and nothing changed, if something has left its page since."""
        pages = [node.page for node in sequence.parked if node.page is not None]
        if sequence.parked_slots or len(pages) < len(sequence.parked):
            return False
        for page in pages:
            self.pages.share(page)
        sequence.pages.extend(pages)
        self.tree.unpin(sequence.parked)
        sequence.parked = []
        return True

    def restart(self, sequence: Sequence) -> None:
        """Take from a sequence all that was computed; what the tree keeps of it can be found."""
        if sequence.pages:
            self.keep(sequence, sequence.num_computed)
        self.close(sequence)
        sequence.restart()

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
