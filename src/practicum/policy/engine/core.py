"""The engine's loop: schedule, run, sample, advance. Synchronous; one thread drives it.

Weights may change between two steps and at no other time: a step holds the lock from its schedule
to its logits. Every token carries the version of the weights that its logits are from.

Shapes: N positions with a hidden state, U distributions (position and temperature).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from practicum.errors import InfraError, PolicyDead, UsageError
from practicum.policy.engine.draw import NOTHING, Draw, Drawn, draw
from practicum.policy.engine.live import Live
from practicum.policy.engine.request import Request
from practicum.policy.engine.runner import Runner
from practicum.policy.engine.scheduler import Scheduler
from practicum.policy.engine.speculation import Speculator, View
from practicum.policy.engine.stats import Stats
from practicum.policy.engine.step import Run, Step
from practicum.policy.model.head import Distribution
from practicum.types import WeightVersion

KNOWN_UNIFORMS = 8
"""Coming random numbers that proposers are told of."""


class Core:
    """All calls under way, and the steps that bring them on."""

    def __init__(
        self, runner: Runner, scheduler: Scheduler, speculator: Speculator | None = None
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.speculator = speculator
        runner.needed = self._needed
        scheduler.save_with(self._save)
        self.stats = Stats()
        self._live: dict[Request, Live] = {}
        self._version = WeightVersion(0)
        self._outdated = False
        self._no_room = ""
        """What happened when a page could last not be saved outside the pool"""

    def __len__(self) -> int:
        return len(self._live)

    def add(self, live: Live) -> None:
        """Take a call in; between steps."""
        self.scheduler.add(live.request)
        self._live[live.request] = live
        self.stats += Stats(requests=1, prompt_tokens=len(live.request.prompt_ids))

    def abort(self, live: Live) -> None:
        """Forget a call and free what only it needs; between steps."""
        if self._live.pop(live.request, None) is not None:
            self.scheduler.abort(live.request)
            live.abort()
            self._tell(live)
            self._finished(live)

    def outdate(self) -> None:
        """The weights have changed, whether or not their version tells; with the lock held."""
        self._outdated = True

    def give_up(self) -> None:
        """End all calls; nothing can be computed any more."""
        for live in self._live.values():
            live.abort()
            self._tell(live)
        self._live.clear()

    @torch.inference_mode()
    def step(
        self,
        lock: AbstractContextManager[object],
        version: Callable[[], WeightVersion],
    ) -> list[Live]:
        """One step of all calls; those that it ended.

        Raises PolicyDead if the model no longer gives a distribution.
        """
        began = time.perf_counter()
        draws = _Draws()
        with lock:
            self._take_weights(version())
            self._propose()
            step = self.scheduler.schedule()
            self._fail_lost(draws)
            there = self._compute(step, draws) if step is not None else None
        at = self._version
        if there is not None:
            self._push(draws, _draw(there, draws.items, at), at)
        if step is not None:
            self.scheduler.advance(step)
            self._record(step, draws, time.perf_counter() - began)
        for live in dict.fromkeys([*(live for live, *_ in draws.of), *draws.ended]):
            self._tell(live)
        for live in draws.ended:
            del self._live[live.request]
            self._finished(live)
        return draws.ended

    def _needed(self) -> Iterable[int]:
        """Pages that must stay exact for what is under way to go on."""
        store = self.runner.store
        for sequence in self.scheduler.running:
            yield from store.recent_pages(sequence.pages, sequence.num_computed)

    def _save(self, page: int, slot: int, exact: bool) -> bool:
        """Save a page outside the pool; False if there is no room for it."""
        try:
            self.runner.store.save(page, slot, exact=exact)
        except InfraError as error:
            self._no_room = str(error)
            return False
        return True

    def _fail_lost(self, draws: _Draws) -> None:
        """End the calls that the scheduler could not hold."""
        for request in self.scheduler.lost:
            live = self._live[request]
            live.fail(
                InfraError(
                    "this completion had to make room for others, and its keys and values could "
                    f"not be moved ({self._no_room}) nor computed again as they were, because "
                    "weights have changed since; give swap_folder more room, raise cache_bytes or "
                    "lower max_batch_rows"
                )
            )
            draws.ended.append(live)
        self.scheduler.lost.clear()

    def _take_weights(self, version: WeightVersion) -> None:
        """From here on, what is computed is computed with these."""
        if self._outdated or version != self._version:
            self._version, self._outdated = version, False
            self.runner.refresh()
            self.scheduler.publish()

    def _propose(self) -> None:
        """Give sequences drafts, where that is expected to save time."""
        if self.speculator is None:
            return
        running = self.scheduler.running[: self.scheduler.max_rows]
        ready = [s for s in running if len(s.tokens) - s.num_computed == 1]
        views = [
            _view(self._live[sequence.requests[0]], sequence.requests, self._version)
            for sequence in ready
        ]
        proposed = self.speculator.drafts(views, other_rows=len(running) - len(ready))
        for sequence, drafts in zip(ready, proposed, strict=True):
            # Also none: those of a step that it took no part in may still be there.
            sequence.drafts = tuple(drafts)

    def _compute(self, step: Step, draws: _Draws) -> Distribution | None:
        """What the model says after the step, and what to draw from it: each (position,
        temperature) is one distribution. None if there is nothing to draw."""
        hidden_ND = self.runner.run(step)
        position = 0
        for run in step.runs:
            positions = range(position, position + run.num_logits)
            position += run.num_logits
            if run.num_logits:
                for request in tuple(run.sequence.requests):
                    live = self._live[request]
                    try:
                        draws.add(live, run, positions)
                    except UsageError as error:  # of its constraint
                        self._fail(live, error, draws)
        return _distribution(self.runner, hidden_ND, draws.places) if draws.items else None

    def _push(self, draws: _Draws, drawn: Drawn, version: WeightVersion) -> None:
        """Give every call its token, and the following ones while they are those of the drafts."""
        for live, run, first, count in draws.of:
            for place in range(count):
                index = first + place
                token_id = drawn.token_ids[index]
                if token_id == NOTHING:
                    self._fail(live, _no_token(live), draws)
                    break
                try:
                    live.push(
                        token_id,
                        drawn.logprobs[index],
                        version,
                        drawn.log_kept_mass[index],
                        drawn.top_logprobs[index],
                    )
                except UsageError as error:  # of its constraint
                    self._fail(live, error, draws)
                    break
                draws.num_pushed += 1
                draws.num_accepted += place > 0  # this follows a guess that came true
                if live.request.stop_reason is not None:
                    draws.ended.append(live)
                    break
                if place == len(run.drafts) or token_id != run.drafts[place]:
                    break

    def _fail(self, live: Live, failure: Exception, draws: _Draws) -> None:
        """End one call within a step; the others of its sequence go on."""
        self.scheduler.abort(live.request)
        live.fail(failure)
        draws.ended.append(live)

    def _tell(self, live: Live) -> None:
        try:
            live.tell()
        except Exception as error:  # whatever a listener does, it is its own call that ends
            live.failure = error
            if live.request.stop_reason is None:
                live.abandoned = True
                self.scheduler.abort(live.request)
                live.abort()
                del self._live[live.request]
                self._finished(live)

    def _record(self, step: Step, draws: _Draws, seconds: float) -> None:
        decoding = [
            run
            for run in step.runs
            if run.first >= run.sequence.num_prompt and run.num_tokens == run.num_logits
        ]
        num_decoded = sum(run.num_tokens for run in decoding)
        num_prompt = step.num_tokens - num_decoded
        share = num_prompt / step.num_tokens
        self.stats += Stats(
            computed_prompt_tokens=num_prompt,
            sampled_tokens=draws.num_pushed,
            decode_steps=1 if decoding else 0,
            decode_rows=len(decoding),
            drafted_tokens=sum(len(run.drafts) for run in step.runs),
            accepted_tokens=draws.num_accepted,
            prefill_s=seconds * share,
            decode_s=seconds * (1 - share),
        )
        if self.speculator is not None and not num_prompt:
            self.speculator.stepped(step.num_logits, seconds)

    def _finished(self, live: Live) -> None:
        if self.speculator is not None:
            self.speculator.finished(_view(live, [live.request], self._version))


@dataclass(slots=True)
class _Draws:
    """The draws of a step and whose they are."""

    items: list[Draw] = field(default_factory=list[Draw])
    places: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Position and temperature of each distribution"""
    of: list[tuple[Live, Run, int, int]] = field(default_factory=list[tuple[Live, Run, int, int]])
    """For each call its run, its first draw and how many"""
    ended: list[Live] = field(default_factory=list[Live])
    num_pushed: int = 0
    num_accepted: int = 0
    _numbers: dict[tuple[int, float], int] = field(default_factory=dict[tuple[int, float], int])

    def add(self, live: Live, run: Run, positions: Sequence[int]) -> None:
        temperature = live.request.sampling.temperature or 1.0
        rows = [self._row(position, temperature) for position in positions]
        draws = live.draws(rows, run.drafts)
        self.of.append((live, run, len(self.items), len(draws)))
        self.items.extend(draws)

    def _row(self, position: int, temperature: float) -> int:
        place = position, temperature
        if place not in self._numbers:
            self._numbers[place] = len(self.places)
            self.places.append(place)
        return self._numbers[place]


def _distribution(
    runner: Runner, hidden_ND: Tensor, places: Sequence[tuple[int, float]]
) -> Distribution:
    positions = [position for position, _ in places]
    if positions != list(range(len(hidden_ND))):
        hidden_ND = hidden_ND[positions]
    temperatures_U = torch.tensor([temperature for _, temperature in places], dtype=torch.float64)
    return runner.distribution(hidden_ND, temperatures_U)


def _draw(there: Distribution, draws: Sequence[Draw], version: WeightVersion) -> Drawn:
    try:
        return draw(there, draws)
    except FloatingPointError:
        raise PolicyDead(f"the model's logits are not finite at version {version}") from None


def _no_token(live: Live) -> UsageError:
    number = len(live.request.token_ids) + 1
    return UsageError(
        f"no token is left to be number {number} of the completion: its constraint and logit_bias "
        "together forbid all of them; allow more by either"
    )


def _view(live: Live, requests: Sequence[Request], version: WeightVersion) -> View:
    """How proposers see requests that agree so far, the first of which is the live one."""
    request = live.request
    number = len(request.token_ids)
    left = max(1, *(each.num_left for each in requests))
    is_greedy = request.sampling.temperature == 0.0
    num_alike = sum(each.sampling.temperature == 0.0 for each in requests) if is_greedy else 1
    return View(
        request_id=request,
        key=(request.salt, request.prompt_ids),
        prompt=request.prompt_ids,
        tokens=request.token_ids,
        version=version,
        max_new=left,
        uniforms=None if is_greedy else live.uniforms.coming(number, min(KNOWN_UNIFORMS, left)),
        num_requests=len(requests),
        num_apart=len(requests) - num_alike,
    )
