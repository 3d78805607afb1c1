"""A model on paper: keys and values are hashes in numpy pages, so that any wrong page shows.

The value of a token hashes itself, the version of the weights and everything before it as read
through the page table; the next token follows from all of them. `reference` does the same for one
request without pages. `PaperEngine` is the engine's loop with nothing else around it.
"""

import random
from collections.abc import Sequence as Seq

import numpy as np

from practicum.policy.engine.pages import PAGE
from practicum.policy.engine.request import Request
from practicum.policy.engine.scheduler import Scheduler
from practicum.policy.engine.step import Run, Step
from practicum.sampling import Sampling
from practicum.types import StopReason, WeightVersion

VOCABULARY = 3  # small, so that samples agree for a while and drafts are sometimes right
WRAP = (1 << 64) - 1
ODD = np.arange(1, 1 << 17, 2, dtype=np.uint64)


def mix(a: int, b: int) -> int:
    a = (a ^ (b * 0x9E3779B97F4A7C15)) & WRAP
    a = ((a ^ (a >> 30)) * 0xBF58476D1CE4E5B9) & WRAP
    a = ((a ^ (a >> 27)) * 0x94D049BB133111EB) & WRAP
    return a ^ (a >> 31)


def value(attended: int, token_id: int, version: int) -> int:
    return mix(attended, token_id * 1009 + version)


def add(attended: int, position: int, value: int) -> int:
    """Attention over one more position; it depends on the order."""
    return (attended + value * (2 * position + 1)) & WRAP


def draw(attended: int, request: Request) -> tuple[int, float, bool]:
    """The next token, its log-prob, and whether the text ends with it."""
    luck = mix(attended, request.sampling.seed * 1_000_003 + len(request.token_ids) + 1)
    token = (attended if luck % 4 else luck >> 8) % VOCABULARY
    return token, -(luck % 4096) / 4096, (luck >> 20) % 150 == 0


def push_drawn(request: Request, attended: int, version: int) -> int:
    token, logprob, ends = draw(attended, request)
    request.push(token, logprob, WeightVersion(version))
    if ends and not request.sampling.ignore_eos:
        request.stop_reason = StopReason.EOS
    elif not request.num_left:
        request.stop_reason = StopReason.MAX_TOKENS
    return token


def reference(asked: Request, versions: Seq[int]) -> Request:
    """The same request alone and without pages, token i being computed with `versions[i]`."""
    request = Request(asked.prompt_ids, asked.sampling)
    tokens = list(asked.prompt_ids)
    attended = 0
    for position, version in enumerate(versions):
        if request.stop_reason is not None:
            break
        attended = add(attended, position, value(attended, tokens[position], version))
        if position == len(tokens) - 1:
            tokens.append(push_drawn(request, attended, version))
    return request


def request(prompt: Seq[int], max_new_tokens: int = 8, seed: int = 0, salt: str = "") -> Request:
    return Request(tuple(prompt), Sampling(max_new_tokens, seed=seed), salt=(salt,))


class PaperEngine:
    """Scheduler and paper model in the engine's loop, which checks what it can on the way."""

    def __init__(self, disk: int | None = None, **limits: int) -> None:
        self.scheduler = Scheduler(**limits)
        self.scheduler.save_with(self._save)
        self.disk = disk
        """Room outside the pool, in pages; None for any number. What was written once stays
        allocated, as in a file."""
        self.lost: list[Request] = []
        self.version = 0
        self.memory = np.zeros((limits["num_pages"], PAGE), dtype=np.uint64)
        self.swap: dict[int, np.ndarray] = {}
        self.versions: dict[Request, list[int]] = {}
        """For every request that has run: the version that computed each of its tokens."""
        self.requests: list[Request] = []
        self._poison = 1

    def add(self, *requests: Request) -> None:
        for asked in requests:
            self.scheduler.add(asked)
            self.requests.append(asked)
            sequences = [*self.scheduler.running, *self.scheduler.waiting]
            (joined,) = (s for s in sequences if asked in s.requests)
            if joined.num_computed and joined.requests[0] in self.versions:
                self.versions[asked] = self.versions[joined.requests[0]]
                assert set(self.versions[asked]) == {self.version}, "joined what is outdated"

    def publish(self) -> None:
        self.version += 1
        self.scheduler.publish()

    def _save(self, page: int, slot: int, exact: bool) -> bool:
        if self.disk is not None and slot not in self.swap and len(self.swap) >= self.disk:
            return False
        self.swap[slot] = self.memory[page].copy()
        return True

    def step(self) -> Step | None:
        step = self.scheduler.schedule()
        self.lost += self.scheduler.lost
        self.scheduler.lost.clear()
        if step is not None:
            self.execute(step)
        return step

    def execute(self, step: Step) -> None:
        self._move(step)
        live = [run for run in step.runs if run.sequence.requests]
        attended = [self._compute(run) for run in live]
        for run, after in zip(live, attended):
            self._sample(run, after)
        self.scheduler.advance(step)
        self._spoil_what_is_free()

    def run(self) -> list[Step]:
        steps: list[Step] = []
        while (step := self.step()) is not None:
            steps.append(step)
        return steps

    def _move(self, step: Step) -> None:
        for moves in (step.copies, step.swap_in):
            assert len({target for _, target in moves}) == len(moves), "a place is written twice"
        self.memory[[t for _, t in step.copies]] = self.memory[[s for s, _ in step.copies]]
        for slot, page in step.swap_in:
            self.memory[page] = self.swap[slot]

    def _compute(self, run: Run) -> list[int]:
        sequence, first = run.sequence, run.first
        table = np.asarray(sequence.pages)
        flat = self.memory[table].ravel()[:first]
        attended = int((flat * ODD[:first]).sum(dtype=np.uint64))
        after: list[int] = []
        for position, token_id in enumerate(run.token_ids, start=first):
            new = value(attended, token_id, self.version)
            self.memory[table[position // PAGE], position % PAGE] = new
            attended = add(attended, position, new)
            after.append(attended)
        before = self.versions.get(sequence.requests[0])
        if before is None:
            before = [self.version] * first  # whatever was found must be of the weights of now
        assert len(before) >= first, "not computed at all"
        again, later = before[first:][: run.num_tokens], before[first + run.num_tokens :]
        assert not again or self.scheduler.counters.restarts, "computed twice"
        if sequence.requests[0].token_ids:
            assert set(again) <= {self.version}, "computed again with other weights"
        elif again:  # it has sampled nothing: as if it had come only now
            before, later = [self.version] * first, []
        for asked in sequence.requests:
            self.versions[asked] = [*before[:first], *[self.version] * run.num_tokens, *later]
        return after[run.num_tokens - run.num_logits :]

    def _sample(self, run: Run, attended: list[int]) -> None:
        for asked in run.sequence.requests if attended else ():
            for index, after in enumerate(attended):
                token = push_drawn(asked, after, self.version)
                rejected = index < len(run.drafts) and token != run.drafts[index]
                if rejected or asked.stop_reason is not None:
                    break
            del self.versions[asked][len(asked.prompt_ids) + len(asked.token_ids) - 1 :]

    def _spoil_what_is_free(self) -> None:
        """Nothing may ever be read from there."""
        self._poison = mix(self._poison, 1)
        free = [p for p, count in enumerate(self.scheduler.tables.pages.counts) if not count]
        self.memory[free] = self._poison

    def check_results(self) -> None:
        """Every request that ended by itself is what it would be alone."""
        for asked in self.requests:
            if asked.stop_reason in (None, StopReason.ABORTED):
                continue
            versions = self.versions[asked]
            alone = reference(asked, versions)
            assert asked.token_ids == alone.token_ids
            assert asked.logprobs == alone.logprobs
            assert asked.versions == alone.versions
            assert asked.stop_reason == alone.stop_reason

    def check_end(self) -> None:
        """Nothing is left when all have ended: idle pages at most, and none after new weights."""
        assert self.step() is None
        assert all(asked.stop_reason is not None for asked in self.requests)
        self.check_results()
        self.scheduler.check()
        pages = self.scheduler.tables.pages
        assert pages.num_available == pages.total
        self.publish()
        self.scheduler.check()
        assert pages.num_free == pages.total
        assert self.scheduler.tables.slots.num_used == 0


BASE = random.Random(7).choices(range(VOCABULARY), k=400)
"""Prompts that begin alike are beginnings of this with ends of their own."""


def prompt(num_shared: int, *own: int) -> list[int]:
    return [*BASE[:num_shared], *own]
