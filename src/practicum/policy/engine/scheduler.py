"""Which tokens are computed next, in which pages. No tensors, no clock, no threads.

The engine's loop is

    while (step := scheduler.schedule()) is not None:
        logits = runner.run(step)
        ...                       # push sampled tokens to the requests of each run
        scheduler.advance(step)

Everything under way stands in one queue in order of arrival: `running` (with pages) and behind it
`waiting`. The rules:

- The head of `waiting` is admitted first or nobody is; a long request is never overtaken. It enters
  once there are pages for all its tokens and one more for every request that would then be under
  way; if nothing else runs, without that head-room.
- The first `max_rows` of `running` take part in a step: one token (and drafts) for each that
  decodes, and the rest of `max_step_tokens` for chunks of prompts. Prompts always have a share.
- If a page is missing, the latest arrival that runs is preempted: the tree keeps its pages, pinned,
  and it goes back to the head of `waiting`. So the first arrival always goes on, and as every
  request alone fits the pool, all of them end.
"""

from __future__ import annotations

from collections import deque

from practicum.errors import UsageError
from practicum.policy.engine.blocks import Blocks
from practicum.policy.engine.counters import Counters
from practicum.policy.engine.pages import PAGE, num_pages
from practicum.policy.engine.request import Request
from practicum.policy.engine.sequence import Sequence
from practicum.policy.engine.step import Run, Step
from practicum.policy.engine.tables import PageTables
from practicum.types import StopReason

WORTH_WAITING = PAGE // 2
"""Tokens for which a prompt waits a step, to share them with one that is computed in it."""


class Scheduler:
    """The queue of one engine. Not thread-safe. Between `schedule` and `advance` nothing is called
    but `abort`."""

    def __init__(
        self,
        *,
        num_pages: int,
        num_slots: int = 0,
        max_rows: int = 128,
        max_step_tokens: int = 512,
        blocks: Blocks = Blocks(),
    ) -> None:
        if num_pages < 1 or max_rows < 1 or num_slots < 0:
            raise UsageError(
                "an engine needs at least 1 page, at least 1 row and no less than 0 slots, not "
                f"{num_pages}, {max_rows} and {num_slots}"
            )
        if max_step_tokens <= max_rows:
            raise UsageError(
                f"max_step_tokens ({max_step_tokens}) must be above max_rows ({max_rows}), or "
                "prompts could not go on beside completions; raise one or lower the other"
            )
        self.max_rows = max_rows
        self.max_step_tokens = max_step_tokens
        self.counters = Counters()
        self.tables = PageTables(num_pages, num_slots, self.counters, blocks)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._sequence_of: dict[Request, Sequence] = {}
        self._joinable: dict[tuple[tuple[str, ...], tuple[int, ...]], Sequence] = {}
        """By salt and prompt: sequences of this era that have not sampled yet."""
        self._step: Step | None = None

    def add(self, request: Request) -> None:
        """Queue a request, or let it join a sequence that has the same prompt and sampled nothing.

        Raises UsageError if it does not fit the pool even alone.
        """
        assert self._step is None, "requests arrive between steps"
        self.check_fits(len(request.prompt_ids), request.sampling.max_new_tokens)
        key = (request.salt, request.prompt_ids)
        sequence = self._joinable.get(key)
        if sequence is None:
            sequence = self._joinable[key] = Sequence.of(request)
            self.waiting.append(sequence)
        else:
            sequence.requests.append(request)
            request.reused_tokens = sequence.num_computed
            self.counters.joined_requests += 1
        self._sequence_of[request] = sequence

    def check_fits(self, num_prompt_tokens: int, max_new_tokens: int) -> None:
        """Raises UsageError if such a request does not fit the pool even alone."""
        needed = num_pages(num_prompt_tokens + max_new_tokens - 1)  # the last is never computed
        if needed > self.tables.pages.total:
            raise UsageError(
                f"a prompt of {num_prompt_tokens} tokens and {max_new_tokens} new ones need "
                f"{needed} pages of {PAGE} tokens, but the engine has {self.tables.pages.total}; "
                "shorten the prompt, lower max_new_tokens, or give the engine more cache memory"
            )

    def abort(self, request: Request) -> None:
        """End a request and free all that it alone needs. One that has ended already stays so."""
        sequence = self._sequence_of.pop(request, None)
        if sequence is None:
            return
        request.stop_reason = StopReason.ABORTED
        if len(sequence.requests) > 1:
            sequence.requests.remove(request)
            return
        self._has_sampled(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._end(sequence)

    def publish(self) -> None:
        """The weights have changed. What is under way goes on with the keys and values it has, and
        nothing new shares them."""
        assert self._step is None, "weights change between steps"
        self.tables.tree.next_era()
        self._joinable = {k: s for k, s in self._joinable.items() if not s.eras}

    def resize_swap(self, num_slots: int) -> None:
        """Keep at most so many pages outside the pool, besides those of preempted sequences."""
        self.tables.slots.limit = num_slots
        self.tables.tree.trim()

    def schedule(self) -> Step | None:
        """The next step; None if there is nothing to do."""
        assert self._step is None, "the step before has not been advanced over"
        self.tables.begin_step()
        step = Step()
        # Of unfinished blocks there is fast memory for no more rows than take part in a step.
        while self.tables.blocks.size > 1 and len(self.running) > self.max_rows:
            self._preempt(step)
        left = self._decode(step, self.max_step_tokens)
        left = self._prefill(step, left)
        self._admit(step, left)
        if not step.runs:
            left_over = self.running or self.waiting
            assert not left_over, "the first in the queue can always go on"
            return None
        self._step = step
        # A slot that was filled and given up again within this step needs to be filled only once.
        last = {slot: page for page, slot in step.swap_out}
        step.swap_out = [(page, slot) for slot, page in last.items()]
        self.counters.swapped_out_pages += len(step.swap_out)
        self.counters.copied_pages += len(step.copies)
        self.counters.swapped_in_pages += len(step.swap_in)
        return step

    def _decode(self, step: Step, left: int) -> int:
        """One token, and drafts, for each sequence that lacks just one; returns the budget left."""
        num_rows = min(len(self.running), self.max_rows)
        num_drafts = (left - num_rows) // 2  # the other half is for prompts
        tables, runs = self.tables, step.runs
        index = 0
        while index < min(len(self.running), self.max_rows):
            sequence = self.running[index]
            index += 1
            first = sequence.num_computed
            if len(sequence.tokens) - first > 1:
                continue
            drafts = sequence.drafts
            if drafts:
                assert len(sequence.requests) == 1, "drafts are for one request"
                sequence.drafts = ()
                drafts = drafts[: min(num_drafts, sequence.requests[0].num_left - 1)]
            end = first + 1 + len(drafts)
            if not tables.is_writable(sequence, end):
                if drafts and not tables.make_writable(sequence, end, step):
                    drafts, end = (), first + 1  # nobody is preempted for a guess
                if not self._make_writable(sequence, end, step):
                    break
            num_drafts -= len(drafts)
            left -= end - first
            runs.append(Run(sequence, first, end - first, drafts, end - first))
        return left

    def _make_writable(self, sequence: Sequence, end: int, step: Step) -> bool:
        """Preempt later arrivals until there is a page; False if it was this one's own turn."""
        while not self.tables.make_writable(sequence, end, step):
            if self._preempt(step) is sequence:
                assert self.running, "a request alone fits the pool"
                return False
        return True

    def _preempt(self, step: Step) -> Sequence:
        """Park the latest arrival that runs."""
        victim = self.running.pop()
        self.tables.park(victim, step)
        self.waiting.appendleft(victim)
        self.counters.preemptions += 1
        return victim

    def _prefill(self, step: Step, left: int) -> int:
        """Chunks of the prompts that are under way; returns the budget left."""
        for sequence in self.running[: self.max_rows]:
            if left and len(sequence.tokens) - sequence.num_computed > 1:
                left -= self._chunk(sequence, step, left)
        return left

    def _chunk(self, sequence: Sequence, step: Step, left: int) -> int:
        first = sequence.num_computed
        count = min(len(sequence.tokens) - first, left)
        is_end = first + count == len(sequence.tokens)
        step.runs.append(Run(sequence, first, count, (), 1 if is_end else 0))
        return count

    def _admit(self, step: Step, left: int) -> None:
        """Let the head of the queue in while there is room in every respect."""
        num_requests = sum(len(sequence.requests) for sequence in self.running)
        while self.waiting and left and num_requests < self.max_rows:
            sequence = self.waiting[0]
            num_requests += len(sequence.requests)
            if self._should_wait(sequence, step):
                return
            if not self.tables.open(sequence, num_requests if self.running else 0, step):
                return
            self.running.append(self.waiting.popleft())
            left -= self._chunk(sequence, step, left)

    def _should_wait(self, sequence: Sequence, step: Step) -> bool:
        """Whether this step computes a beginning of the sequence that it can have in the next."""
        if sequence.is_parked:
            return False
        least = self.tables.num_known(sequence) + WORTH_WAITING
        if least >= len(sequence.tokens):
            return False
        return any(
            self._num_shared(sequence, run) >= least
            for run in step.runs
            if run.first < run.sequence.num_prompt
            and run.first + run.num_tokens >= least
            and run.sequence.salt == sequence.salt
            and self.tables.is_shareable(run.sequence)
        )

    def _num_shared(self, sequence: Sequence, run: Run) -> int:
        """Tokens that a sequence can have from another once a run of that one is done."""
        same = sequence.num_shared(run.sequence, run.first + run.num_tokens)
        return self.tables.blocks.reusable(same)

    def advance(self, step: Step) -> None:
        """The step has run, and every request of a run with logits has its new tokens."""
        assert step is self._step, "this is not the step under way"
        self._step = None
        era = self.tables.tree.era
        branches: dict[Sequence, list[Sequence]] = {}
        for sequence, first, num_tokens, drafts, num_logits in step.runs:
            requests = sequence.requests
            if not requests:  # aborted while the step ran
                continue
            sequence.computed(first + num_tokens - len(drafts), era)
            if sequence.num_computed <= sequence.num_prompt:
                self.tables.keep(sequence, sequence.num_computed)
            if num_logits:
                self._append(sequence, drafts)
                if len(requests) > 1 or requests[0].stop_reason is not None:
                    branches[sequence] = self._branch(sequence)
        if branches:
            self.running = [
                branch
                for sequence in self.running
                for branch in branches.get(sequence, (sequence,))
            ]

    def _append(self, sequence: Sequence, drafts: tuple[int, ...]) -> None:
        """Take over what the (first) request sampled: accepted drafts and one token of its own."""
        num_known = len(sequence.tokens) - sequence.num_prompt
        if num_known == 0:
            self._has_sampled(sequence)
        new = sequence.requests[0].token_ids[num_known:]
        assert new, "a request of this run was given no token"
        sequence.tokens.extend(new)
        if len(new) > 1:
            assert tuple(new[:-1]) == drafts[: len(new) - 1], "only drafts can be accepted"
            sequence.computed(len(sequence.tokens) - 1, self.tables.tree.era)

    def _branch(self, sequence: Sequence) -> list[Sequence]:
        """The sequences that go on after this one: one for each token that was drawn."""
        by_token: dict[int, list[Request]] = {}
        for request in sequence.requests:
            if request.stop_reason is None:
                by_token.setdefault(request.token_ids[-1], []).append(request)
            else:
                del self._sequence_of[request]
        if not by_token:
            self.tables.keep(sequence, sequence.num_computed)
            self._end(sequence)
            return []
        (token_id, sequence.requests), *others = by_token.items()
        sequence.tokens[-1] = token_id  # the first branch stays what it was
        branches = [sequence]
        for token_id, requests in others:
            branch = self.tables.fork(sequence, requests, token_id)
            for request in requests:
                self._sequence_of[request] = branch
            branches.append(branch)
        return branches

    def _end(self, sequence: Sequence) -> None:
        sequence.requests = []
        self.tables.close(sequence)

    def _has_sampled(self, sequence: Sequence) -> None:
        """Nobody may join this one any more."""
        key = (sequence.salt, sequence.requests[0].prompt_ids)
        if self._joinable.get(key) is sequence:
            del self._joinable[key]

    def check(self) -> None:
        """Assert every invariant; for tests."""
        sequences = [*self.running, *self.waiting]
        self.tables.check(sequences)
        requests = [request for sequence in sequences for request in sequence.requests]
        assert len(requests) == len(self._sequence_of) == len(set(requests))
        for sequence in sequences:
            assert sequence.requests, "a sequence that ended is still in the queue"
            for request in sequence.requests:
                assert self._sequence_of[request] is sequence
                assert [*request.prompt_ids, *request.token_ids] == list(sequence.tokens)
        assert not any(sequence.pages for sequence in self.waiting)
        assert set(self._joinable.values()) <= set(sequences)
