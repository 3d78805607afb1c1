"""The memory of an engine's pages: exact ones, and where a policy asks for it coded ones.

The one thing to know: the scheduler counts pages, whatever they hold. If pages are coded, a page
has its row in `coded` for as long as it lives, and a place among the few exact ones only while
tokens are written to it or somebody still reads it exactly. `needed` tells which pages those are
when exact places run short; all others are given up.

Memory that no page was ever written to costs nothing: it is mapped, not filled.

Shapes: L layers, P pages, E exact places, K key-value heads, C head size, T tokens of a step.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequence_
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from practicum.errors import UsageError
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.step import Run
from practicum.policy.engine.swap import Swap
from practicum.policy.model.coded_pages import PAGE, code, coded_bytes
from practicum.policy.model.far_pages import BLOCK, Far
from practicum.policy.model.paged import Reading, attend, put
from practicum.policy.model.shape import AttentionRule, Shape

Needed = Callable[[], Iterable[int]]


class PageStore:
    """Contents of pages by number."""

    def __init__(
        self,
        shape: Shape,
        num_pages: int,
        dtype: torch.dtype,
        policy: KvPolicy = KvPolicy(),
        num_exact: int | None = None,
        swap_folder: Path | None = None,
    ) -> None:
        self.policy = policy
        self.is_coded = policy.bits < 16
        num_exact = num_pages if not self.is_coded or num_exact is None else num_exact
        layers, num_kv, size = shape.num_layers, shape.num_kv_heads, shape.head_size
        if self.is_coded and size % PAGE:
            raise UsageError(
                f"keys and values of {policy.bits} bits need heads whose size is a multiple of "
                f"{PAGE}; this model's is {size}"
            )
        self.exact = _mapped((layers, num_exact, 2, num_kv, PAGE * size), dtype)
        self.coded = self.bounds = None
        if self.is_coded:
            row = coded_bytes(size, policy.bits)
            self.coded = _mapped((layers, num_pages, num_kv, row), torch.uint8)
        if policy.top_pages:
            self.bounds = _mapped((layers, num_pages, num_kv, size, 2), dtype)
        self._place_of = np.full(num_pages, -1, np.int32)
        """Where the exact contents of a page are"""
        self._free = list(range(num_exact - 1, -1, -1))
        parts = [part for part in (self.coded, self.bounds) if part is not None]
        self._swaps = [(part, Swap(swap_folder)) for part in parts]
        self._exact_swap = Swap(swap_folder)
        self._exact_slots: set[int] = set()
        if not self.is_coded:
            self._place_of, self._free = np.arange(num_pages, dtype=np.int32), []

    def save(self, page: int, slot: int, *, exact: bool = True) -> None:
        """Keep a page's contents in a slot outside, without `exact` those that are coded alone.

        Raises InfraError if the disk is full.
        """
        for part, swap in self._swaps:
            swap.save(slot, part[:, page])
        self._exact_slots.discard(slot)
        if self._place_of[page] >= 0 and (exact or not self.is_coded):
            self._exact_swap.save(slot, self.exact[:, self._place_of[page]])
            self._exact_slots.add(slot)

    def load(self, slot: int, page: int, needed: Needed) -> None:
        """Bring a slot's contents back to a page."""
        for part, swap in self._swaps:
            swap.load(slot, part[:, page])
        if slot in self._exact_slots:
            self._exact_swap.load(slot, self.exact[:, self._own_place(page, needed)])

    def copy(self, source: int, target: int, needed: Needed) -> None:
        """Make one page like another."""
        for part, _ in self._swaps:
            part[:, target] = part[:, source]
        if self._place_of[source] >= 0:
            place = self._own_place(target, needed)
            self.exact[:, place] = self.exact[:, self._place_of[source]]

    def fill(self, numbers: Sequence_[int], pages: Tensor) -> None:
        """Give whole pages [n, 2, K, 32 * C] the same contents in every layer, for measurements.

        Coded ones stay so; the latest get exact places as far as there are any left.
        """
        targets, sources = torch.tensor(list(numbers)), torch.arange(len(pages))
        for part in (self.coded, self.bounds):
            if part is not None:
                both = (self.coded, self.bounds)
                coded, bounds = (part[0] if part is which else None for which in both)
                code(pages, sources, targets, self.policy.bits, coded, bounds)
                part[1:, targets] = part[0, targets]
        for number, page in zip(reversed(numbers), pages.flip(0)):
            if self._place_of[number] < 0 and self._free:
                self._place_of[number] = self._free.pop()
            if (place := int(self._place_of[number])) >= 0:
                self.exact[:, place] = page

    def recent_pages(
        self, pages: Sequence_[int], num_computed: int, num_new: int = 0
    ) -> Sequence_[int]:
        """Which pages of a sequence must be exact for it to go on, and to compute new tokens."""
        first = self.policy.blocks.finished(num_computed)
        return pages[first // PAGE : -(-(num_computed + num_new) // PAGE)]

    def open(self, runs: Sequence_[Run], reading: Reading, needed: Needed) -> StepPages:
        """Make room for the tokens of some runs. `reading` holds page numbers."""
        if self.policy.is_plain:
            return StepPages(self, reading, None, None)
        if self.is_coded:
            for run in runs:
                for page in run.sequence.pages[
                    run.first // PAGE : -(-(run.first + run.num_tokens) // PAGE)
                ]:
                    if self._place_of[page] < 0:
                        self._own_place(page, needed)
        complete: dict[int, None] = {}
        for run in runs:
            first, end = run.first // BLOCK, (run.first + run.num_tokens) // BLOCK
            in_block = BLOCK // PAGE
            complete |= dict.fromkeys(run.sequence.pages[first * in_block : end * in_block])
        numbers = torch.tensor(list(complete), dtype=torch.int64)
        places = torch.from_numpy(self._place_of)[reading.tables.to(torch.int64)]
        exact = Reading(reading.positions, places, reading.starts)
        return StepPages(self, exact, reading.tables, numbers)

    def places(self, pages: Tensor) -> Tensor:
        """int64: where exact contents of pages are."""
        return torch.from_numpy(self._place_of)[pages].to(torch.int64)

    def _own_place(self, page: int, needed: Needed) -> int:
        if self._place_of[page] >= 0:
            return int(self._place_of[page])
        if not self._free:
            keep = np.zeros(len(self._place_of), dtype=bool)
            keep[np.fromiter(needed(), dtype=np.int64)] = True
            idle = np.flatnonzero(~keep & (self._place_of >= 0))
            self._free = self._place_of[idle].tolist()
            self._place_of[idle] = -1
        if not self._free:
            raise UsageError(
                f"{self.exact.shape[1]} exact pages are too few for the sequences under way; raise "
                "num_exact or lower the number of rows or the tokens of a step"
            )
        self._place_of[page] = self._free.pop()
        return int(self._place_of[page])


class StepPages:
    """The pages as one step reads and writes them; satisfies `transformer.Memory`."""

    def __init__(
        self, store: PageStore, reading: Reading, tables: Tensor | None, complete: Tensor | None
    ) -> None:
        self._store = store
        self.reading = reading
        self.slots = reading.slots()
        """int64 [T]: where each token's key and value go, in the exact pages of a layer"""
        self._tables = tables
        self._complete = complete
        """Pages of blocks that are complete after this step"""
        self._complete_places = None if complete is None else store.places(complete)

    def exact(self, layer: int) -> Tensor:
        """[E, 2, K, 32 * C]: what new keys and values are written into."""
        return self._store.exact[layer]

    def read(self, layer: int, query_THC: Tensor, declared: AttentionRule) -> Tensor:
        """What every token reads, [T, H, C], once all keys and values of the layer are in place."""
        store, policy = self._store, self._store.policy
        rule = policy.rule(layer, declared)
        if self._tables is None or self._complete is None or self._complete_places is None:
            return attend(store.exact[layer], query_THC, self.reading, rule)
        coded = None if store.coded is None else store.coded[layer]
        top = policy.top_of(layer, rule)
        bounds = store.bounds[layer] if store.bounds is not None and top else None
        if coded is None and bounds is None:
            return attend(store.exact[layer], query_THC, self.reading, rule)
        if len(self._complete):
            where = (self._complete_places, self._complete)
            code(store.exact[layer], *where, policy.bits, coded, bounds)
        far = Far(self._tables, policy.recent, policy.bits, coded, bounds, top)
        return attend(store.exact[layer], query_THC, self.reading, rule, far)

    def attend(
        self, layer: int, query_THC: Tensor, key_TKC: Tensor, value_TKC: Tensor, rule: AttentionRule
    ) -> Tensor:
        put(self.exact(layer), key_TKC, value_TKC, self.slots)
        return self.read(layer, query_THC, rule)


def _mapped(size: Sequence_[int], dtype: torch.dtype) -> Tensor:
    """Memory that is not touched yet and begins where a cache line does: kernels read it by lines.

    (numpy's would ask for huge pages, which are zeroed whole when one byte of them is written.)
    """
    num_bytes = int(np.prod(size)) * dtype.itemsize
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    room = mmap.mmap(-1, max(num_bytes, 1), flags=kind)
    return torch.frombuffer(room, dtype=dtype, count=num_bytes // dtype.itemsize).view(*size)
