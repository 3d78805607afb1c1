"""Sequences played through the engine's runner by hand: any chunks, order, pages, forks and moves.

What a scheduler could do, and more than ours does, so that parity does not lean on its habits.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field

import torch
from torch import Tensor

from practicum.policy.engine.runner import Runner
from practicum.policy.engine.sequence import Sequence
from practicum.policy.engine.step import Run, Step
from practicum.policy.model.paged import PAGE
from practicum.policy.model.transformer import Transformer


def random_group(draw: random.Random, vocabulary: int) -> list[list[int]]:
    """Sequences that branch from one another, and perhaps some that have nothing in common."""
    sequences: list[list[int]] = []
    for _ in range(draw.randint(1, 5)):
        new = [draw.randrange(vocabulary) for _ in range(draw.randint(1, 90))]
        if sequences and draw.random() < 0.8:
            parent = draw.choice(sequences)
            new = parent[: draw.randint(1, len(parent))] + new
        sequences.append(new[:230])
    return sequences


def _shared(one: Sequence_[int], other: Sequence_[int]) -> int:
    pairs = zip(one, other)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@dataclass
class Play:
    """One random schedule. Every position's hidden state is kept as it is computed."""

    model: Transformer
    sequences: list[list[int]]
    draw: random.Random
    hidden: list[list[Tensor]] = field(init=False)
    active: dict[int, Sequence] = field(default_factory=dict[int, Sequence])
    uses: Counter[int] = field(default_factory=Counter[int])

    def __post_init__(self) -> None:
        self.hidden = [[] for _ in self.sequences]
        num_pages = 9 + sum(len(tokens) // PAGE + 2 for tokens in self.sequences)
        self.runner = Runner(self.model, num_pages)
        self.free = self.draw.sample(range(num_pages), num_pages)

    @torch.inference_mode()
    def run(self) -> list[Tensor]:
        """[L, D] of each sequence."""
        while any(len(rows) < len(s) for rows, s in zip(self.hidden, self.sequences)):
            self._begin_some()
            if all(self._left(number) == 0 for number in self.active):
                continue
            step = Step()
            self._move_some(step)
            while not step.runs:
                self._choose_runs(step)
            rows = self.runner.run(step)
            for run in step.runs:
                number = next(n for n, s in self.active.items() if s is run.sequence)
                known = run.num_tokens - len(run.drafts)
                self.hidden[number] += rows[:known].unbind()
                rows = rows[run.num_tokens :]
                run.sequence.num_computed += known
        return [torch.stack(rows) for rows in self.hidden]

    def _begin_some(self) -> None:
        """Some begin with what another has computed already, however much that is by now."""
        for number in range(len(self.sequences)):
            if number in self.active or self.draw.random() < 0.7:
                continue
            tokens = self.sequences[number]
            sequence = Sequence([], len(tokens), array("i", tokens))
            if self.active and self.draw.random() < 0.9:
                other = self.draw.choice(list(self.active))
                common = _shared(tokens, self.sequences[other])
                start = min(common, self.active[other].num_computed)
                sequence.pages = self.active[other].pages[: -(-start // PAGE)]
                sequence.num_computed = start
                self.uses.update(sequence.pages)
                self.hidden[number] = self.hidden[other][:start]
            self.active[number] = sequence

    def _left(self, number: int) -> int:
        return len(self.sequences[number]) - len(self.hidden[number])

    def _new_page(self) -> int:
        page = self.free.pop()
        self.uses[page] = 1
        return page

    def _leave(self, page: int) -> None:
        self.uses[page] -= 1
        if not self.uses[page]:
            self.free.insert(self.draw.randint(0, len(self.free)), page)

    def _move_some(self, step: Step) -> None:
        """Out of the pool and back elsewhere; shared pages too, for one of those that share."""
        for sequence in self.active.values():
            for place in range(len(sequence.pages)):
                if len(self.free) > 8 and self.draw.random() < 0.03:
                    old, new = sequence.pages[place], self._new_page()
                    slot = len(step.swap_in)
                    self.runner.store.save(old, slot)
                    step.swap_in.append((slot, new))
                    sequence.pages[place] = new
                    self._leave(old)

    def _choose_runs(self, step: Step) -> None:
        order = list(self.active.items())
        self.draw.shuffle(order)
        for number, sequence in order:
            left = self._left(number)
            if not left or self.draw.random() < 0.3:
                continue
            count = min(left, self.draw.choice([1, 1, 1, 2, 17, 40, 100]))
            drafts: tuple[int, ...] = ()
            if self.draw.random() < 0.2:  # guesses that turn out wrong
                drafts = tuple(self.draw.randrange(50) for _ in range(self.draw.randint(1, 4)))
            first, total = sequence.num_computed, count + len(drafts)
            self._make_room(sequence, first, first + total, step)
            step.runs.append(Run(sequence, first, total, drafts, total))

    def _make_room(self, sequence: Sequence, first: int, end: int, step: Step) -> None:
        """Copy the shared page that is about to be written, and take new ones behind it."""
        for place in range(first // PAGE, len(sequence.pages)):
            old = sequence.pages[place]
            if self.uses[old] > 1:
                sequence.pages[place] = self._new_page()
                step.copies.append((old, sequence.pages[place]))
                self._leave(old)
        while len(sequence.pages) * PAGE < end:
            sequence.pages.append(self._new_page())
