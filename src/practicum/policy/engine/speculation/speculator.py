"""Speculation as the engine sees it: ask for guesses before a step, tell its time afterwards.

All else is read off the views: what was sampled since the last step says which guesses were right.
No decision taken here can change a token; at worst it costs time. What is tried without expected
gain (a proposer listened to while it rests, a step with rows whose cost is unknown) is paid from an
allowance: a share of the time of all steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from practicum.errors import UsageError
from practicum.policy.engine.speculation.acceptance import Acceptance
from practicum.policy.engine.speculation.choice import Choice, choose, rank, take
from practicum.policy.engine.speculation.cost import StepCost
from practicum.policy.engine.speculation.ledger import Ledger
from practicum.policy.engine.speculation.proposal import Guess, Proposer, View

PROBE_SHARE = 0.01
"""Share of the time of all steps that may be lost to learn what larger steps cost."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Totals so far."""

    steps: int = 0
    drafted: int = 0
    """Guesses that were run."""
    accepted: int = 0
    """Guesses run that came true."""
    probes: int = 0
    """Steps with guesses that were expected to lose."""
    propose_s: float = 0.0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Pending:
    """Guesses that wait for the tokens in their places."""

    proposer: str
    guesses: list[Guess]
    num_tokens: int
    """Sampled tokens when the guesses were made."""
    num_run: int
    """Leading guesses that were run, by this proposer's choice."""


class Speculator:
    """Chooses guesses for a batch, and learns what they are worth. Not thread-safe."""

    def __init__(
        self,
        proposers: Sequence[Proposer],
        *,
        max_guesses: int = 8,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_guesses < 1:
            raise UsageError(f"max_guesses must be at least 1, not {max_guesses}")
        if len({proposer.name for proposer in proposers}) < len(proposers):
            raise UsageError("two proposers have the same name; each needs one of its own")
        self.cost = StepCost()
        self.acceptance = Acceptance()
        self._ledgers = {each.name: Ledger(float(max_guesses)) for each in proposers}
        self._proposers = list(proposers)
        self._clock = clock
        self._pending: dict[Hashable, list[_Pending]] = {}
        self._allowance_s = 0.0
        self._stats = SpeculationStats()

    @property
    def stats(self) -> SpeculationStats:
        return self._stats

    @property
    def resting(self) -> frozenset[str]:
        """Proposers that lose at present, and are only listened to."""
        return frozenset(name for name, ledger in self._ledgers.items() if ledger.resting)

    def drafts(self, views: Sequence[View], other_rows: int = 0) -> list[list[int]]:
        """Guesses to run after the last token of each view, none for most of them.

        `other_rows` are rows of the same step that belong to no view, such as a prompt's. The
        engine may run fewer guesses than it was given.
        """
        for view in views:
            self._settle(view)
        plain_rows = len(views) + other_rows
        if not views or not self._stats.steps:
            return [[] for _ in views]
        proposals, spent_s = self._listen(views)
        best = [self._best(view, proposals, n) for n, view in enumerate(views)]
        gains = [gains for _, _, gains in best]
        plain_tokens = sum(view.num_requests for view in views)
        choice = choose(gains, plain_tokens, plain_rows, self.cost.seconds)
        if not any(choice.counts):
            choice = self._probe(gains, plain_tokens, plain_rows) or choice
        self._book(choice, [name for name, _, _ in best], spent_s)
        self._remember(views, proposals, best, choice)
        return [
            [guess.token for guess in guesses[:count]]
            for (_, guesses, _), count in zip(best, choice.counts, strict=True)
        ]

    def stepped(self, rows: int, seconds: float) -> None:
        """A step with so many rows, guesses included, took so long."""
        self.cost.observe(rows, seconds)
        self._allowance_s = min(self._allowance_s + PROBE_SHARE * seconds, 10 * seconds)
        for ledger in self._ledgers.values():
            ledger.allow(seconds)
        stats = self._stats
        self._stats = replace(stats, steps=stats.steps + 1, step_s=stats.step_s + seconds)

    def finished(self, view: View) -> None:
        """The request has ended with these tokens, or was aborted with them."""
        self._settle(view)
        self._pending.pop(view.request_id, None)
        self.acceptance.forget(view.request_id)
        for proposer in self._proposers:
            proposer.finished(view)

    def _listen(
        self, views: Sequence[View]
    ) -> tuple[dict[str, list[list[Guess]]], dict[str, float]]:
        """Proposals of those who are not resting or whose turn it is, and what they cost."""
        proposals: dict[str, list[list[Guess]]] = {}
        spent_s: dict[str, float] = {}
        for proposer in self._proposers:
            ledger = self._ledgers[proposer.name]
            if not ledger.may_propose:
                continue
            began = self._clock()
            found = proposer.propose(views, ledger.reach)
            spent_s[proposer.name] = self._clock() - began
            # The last token of a completion needs no guess: the row before it draws it.
            proposals[proposer.name] = [
                guesses[: view.max_new - 1] for guesses, view in zip(found, views, strict=True)
            ]
        total_s = self._stats.propose_s + sum(spent_s.values())
        self._stats = replace(self._stats, propose_s=total_s)
        return proposals, spent_s

    def _best(
        self, view: View, proposals: dict[str, list[list[Guess]]], number: int
    ) -> tuple[str, list[Guess], list[float]]:
        """The proposal from which most is expected: its proposer, guesses and their gains."""
        best: tuple[str, list[Guess], list[float]] = ("", [], [])
        for name, of_all in proposals.items():
            guesses = of_all[number]
            likely = [
                self.acceptance.probability(name, view.request_id, guess.confidence)
                for guess in guesses
            ]
            gains = [view.num_served * gain for gain in accumulate(likely, mul)]
            if sum(gains) > sum(best[2]):
                best = (name, guesses, gains)
        return best

    def _probe(
        self, gains: Sequence[Sequence[float]], plain_tokens: int, plain_rows: int
    ) -> Choice | None:
        """Once it can be afforded: up to twice the rows, if nobody knows what they cost."""
        picked = rank(gains)[:plain_rows]
        if not picked or self.cost.measured(plain_rows + len(picked)):
            return None
        trial = take(picked, len(gains), plain_tokens, plain_rows, self.cost.seconds)
        if -trial.saved_s > self._allowance_s:
            return None
        self._allowance_s += min(0.0, trial.saved_s)
        self._stats = replace(self._stats, probes=self._stats.probes + 1)
        return trial

    def _book(self, choice: Choice, names: Sequence[str], spent_s: dict[str, float]) -> None:
        """Credit each proposer with its share of what the choice saves, less what it cost."""
        total = sum(choice.extra_tokens)
        for name, cost_s in spent_s.items():
            mine = [n for n, winner in enumerate(names) if winner == name]
            share = sum(choice.extra_tokens[n] for n in mine) / total if total else 0.0
            deepest = max((choice.counts[n] for n in mine), default=0)
            self._ledgers[name].book(share * max(0.0, choice.saved_s), cost_s, deepest)

    def _remember(
        self,
        views: Sequence[View],
        proposals: dict[str, list[list[Guess]]],
        best: Sequence[tuple[str, list[Guess], list[float]]],
        choice: Choice,
    ) -> None:
        for number, view in enumerate(views):
            winner, count = best[number][0], choice.counts[number]
            pending = [
                _Pending(name, each[number], len(view.tokens), count if name == winner else 0)
                for name, each in proposals.items()
                if each[number]
            ]
            if pending:
                self._pending[view.request_id] = pending

    def _settle(self, view: View) -> None:
        """Score the guesses whose places have tokens by now."""
        waiting = self._pending.get(view.request_id)
        if not waiting or len(view.tokens) == waiting[0].num_tokens:
            return
        del self._pending[view.request_id]
        sampled = view.tokens[waiting[0].num_tokens :]
        for pending in waiting:
            self.acceptance.score(pending.proposer, view.request_id, pending.guesses, sampled)
            if pending.num_run:
                run = [guess.token for guess in pending.guesses[: pending.num_run]]
                right = [guess == token for guess, token in zip(run, sampled)]
                drafted = self._stats.drafted + pending.num_run
                accepted = self._stats.accepted + [*right, False].index(False)
                self._stats = replace(self._stats, drafted=drafted, accepted=accepted)
