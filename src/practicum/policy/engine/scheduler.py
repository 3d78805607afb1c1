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
- Where there is no room outside the pool, nobody is preempted: who lacks a page stays as it is and
  misses steps until another ends. Only when nobody can go on does one give way. Then the latest
  that can be computed again with the same result is, later; if there is none, the latest is lost.
"""

from __future__ import annotations

from collections import deque

from practicum.errors import UsageError
from practicum.policy.engine.blocks import Blocks
from practicum.policy.engine.counters import Counters
from practicum.policy.engine.pages import PAGE, Save, num_pages
from practicum.policy.engine.request import Request
from practicum.policy.engine.sequence import Sequence
from practicum.policy.engine.sharing import is_coming
from practicum.policy.engine.step import Run, Step
from practicum.policy.engine.tables import PageTables
from practicum.types import StopReason


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
        self.lost: list[Request] = []
        """Requests that were ended for want of room; whoever tells their callers clears it."""

    def save_with(self, save: Save) -> None:
        """Move pages out of the pool by this; without it there is no room outside."""
        self.tables.slots.save = save

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
        self._leave_queue(sequence)
        self._end(sequence)

    def publish(self) -> None:
        """The weights have changed. What is under way goes on with the keys and values it has, and
        nothing new shares them. What gave its own up cannot have them again and is lost."""
        assert self._step is None, "weights change between steps"
        self.tables.tree.next_era()
        self._joinable = {k: s for k, s in self._joinable.items() if not s.eras}
        for sequence in [s for s in (*self.running, *self.waiting) if s.is_redone]:
            self._lose(sequence)

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
            if not self._preempt():
                self._give_way(self.running)
        self._fill(step)
        while not step.runs and (self.running or self.waiting):
            self._give_way([*self.running, *self.waiting])
            self._fill(step)
        if not step.runs:
            return None
        self._step = step
        self.counters.copied_pages += len(step.copies)
        self.counters.swapped_in_pages += len(step.swap_in)
        return step

    def _fill(self, step: Step) -> None:
        left = self._decode(step, self.max_step_tokens)
        left = self._prefill(step, left)
        self._admit(step, left)

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
            drafts, sequence.drafts = sequence.drafts, ()
            if drafts:
                most = max(request.num_left for request in sequence.requests) - 1
                drafts = drafts[: min(num_drafts, most)]
            end = first + 1 + len(drafts)
            if not tables.is_writable(sequence, end):
                if drafts and not tables.make_writable(sequence, end, step):
                    drafts, end = (), first + 1  # nobody is preempted for a guess
                if not self._make_writable(sequence, end, step):
                    continue
            num_drafts -= len(drafts)
            left -= end - first
            runs.append(Run(sequence, first, end - first, drafts, end - first))
        return left

    def _make_writable(self, sequence: Sequence, end: int, step: Step) -> bool:
        """Preempt later arrivals until there is a page; False if it was this one's own turn, or if
        preempting frees none."""
        num_running = len(self.running)
        while not self.tables.make_writable(sequence, end, step):
            if self.tables.slots.is_full or not self._preempt():
                while len(self.running) < num_running and self.tables.unpark(self.waiting[0]):
                    self.running.append(self.waiting.popleft())  # it was in vain
                    self.counters.preemptions -= 1
                return False
            if sequence.is_parked:
                return False
        return True

    def _preempt(self) -> bool:
        """Park the latest arrival that runs; False if there is no room for it."""
        if not self.tables.park(self.running[-1]):
            return False
        self.waiting.appendleft(self.running.pop())
        self.counters.preemptions += 1
        return True

    def _give_way(self, candidates: list[Sequence]) -> None:
        """There is no room: take from one sequence what was computed of it."""
        candidates = [sequence for sequence in candidates if sequence.pages or sequence.is_parked]
        assert len(candidates) > 1, "a request alone can always go on"
        era = self.tables.tree.era
        latest = next((s for s in reversed(candidates) if s.can_restart(era)), None)
        if latest is None:
            self._lose(candidates[-1])
            return
        self._leave_queue(latest)
        self.tables.restart(latest)
        # Behind those that are parked: they hold what this one would wait for.
        self.waiting.insert(sum(other.is_parked for other in self.waiting), latest)
        self.counters.restarts += 1

    def _lose(self, sequence: Sequence) -> None:
        """End all requests of a sequence, because it cannot go on."""
        self.counters.lost_requests += len(sequence.requests)
        for request in sequence.requests[:]:
            self.lost.append(request)
            self.abort(request)

    def _leave_queue(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

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
            if is_coming(sequence, step, self.tables):
                return
            if not self.tables.open(sequence, num_requests if self.running else 0, step):
                return
            self.running.append(self.waiting.popleft())
            left -= self._chunk(sequence, step, left)

    def advance(self, step: Step) -> None:
        """The step has run, and every request of a run with logits has its new tokens."""
        assert step is self._step, "this is not the step under way"
        self._step = None
        era = self.tables.tree.era
        branches: dict[Sequence, list[Sequence]] = {}
        for sequence, first, num_tokens, drafts, num_logits in step.runs:
            if not sequence.requests:  # aborted while the step ran
                continue
            sequence.computed(first + num_tokens - len(drafts), era)
            if sequence.num_computed <= sequence.num_prompt:
                self.tables.keep(sequence, sequence.num_computed)
            if num_logits:
                branches[sequence] = self._sampled(sequence, drafts)
        self.running = [
            branch for sequence in self.running for branch in branches.get(sequence, (sequence,))
        ]

    def _sampled(self, sequence: Sequence, drafts: tuple[int, ...]) -> list[Sequence]:
        """The sequences that go on after this one: one for all requests that were given the same
        new tokens, which are accepted drafts and one of their own."""
        num_known = len(sequence.tokens) - sequence.num_prompt
        if num_known == 0:
            self._has_sampled(sequence)
        by_tokens: dict[tuple[int, ...], list[Request]] = {}
        longest: tuple[int, ...] = ()
        for request in sequence.requests:
            new = tuple(request.token_ids[num_known:])
            assert new, "a request of this run was given no token"
            assert new[:-1] == drafts[: len(new) - 1], "only drafts can be accepted"
            if request.stop_reason is None:
                by_tokens.setdefault(new, []).append(request)
            else:
                del self._sequence_of[request]
                longest = max(longest, new, key=len)
        era = self.tables.tree.era
        if not by_tokens:
            sequence.extend(longest, era)
            self.tables.keep(sequence, sequence.num_computed)
            self._end(sequence)
            return []
        (first, sequence.requests), *others = by_tokens.items()
        branches = [sequence]
        for new, requests in others:
            branch = self.tables.fork(sequence, requests, new)
            for request in requests:
                self._sequence_of[request] = branch
            branches.append(branch)
        sequence.extend(first, era)  # the first branch stays what it was
        if others:
            self.tables.cut(sequence)
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
