"""`practicum bench engine`: our engine, its peers and the roof on the same work, in one run.

Contenders take turns, A B C A B C, each alone in its process; medians of the repetitions count. The
figure to compare is output tokens per CPU second: it leaves out the time that others held the core.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from practicum.bench import engine_report, rollout_workload
from practicum.bench.engine_contenders import ROOFS, Contender, Running, check_peers, line_up
from practicum.bench.engine_frontier import measure_kl
from practicum.bench.rollout_workload import ROWS, Work
from practicum.errors import InfraError, UsageError, did_you_mean
from practicum.policy.model.tokens import Tokens

MODEL = "smollm2-135m"
MOST_THREADS = 64

Make = Callable[[Tokens, int], Work]
"""A tokenizer and the number of the run -> the work."""

PARTS: Mapping[str, tuple[Make, ...]] = {
    "rollout": (rollout_workload.rollout,),
    "rows": tuple(
        lambda tokens, number, rows=rows: rollout_workload.rows(tokens, rows, number)
        for rows in ROWS
    ),
    "shared": (
        lambda tokens, number: rollout_workload.shared(tokens, number, copied=False),
        lambda tokens, number: rollout_workload.shared(tokens, number, copied=True),
    ),
    "turns": (
        lambda tokens, number: rollout_workload.turns(tokens, number, forgetful=False),
        lambda tokens, number: rollout_workload.turns(tokens, number, forgetful=True),
    ),
}
"""What `--only` chooses from, besides `frontier`."""

FRONTIER = "frontier"


@dataclass(frozen=True, slots=True)
class Figure:
    """One contender on one work: medians over the repetitions."""

    work: str
    tokens_per_cpu_s: float
    tokens_per_s: float
    slowest_per_cpu_s: float
    peak_mb: float
    reused: float | None
    """Fraction of prompt tokens that were not computed again; None if the engine does not say."""


@dataclass(slots=True)
class Measured:
    """One contender with so many threads."""

    name: str
    num_threads: int
    note: str = ""
    absent: str = ""
    """Why there is nothing to measure, if there is not."""
    start_s: float = 0.0
    """From the start of the process to the first token."""
    start_cpu_s: float = 0.0
    update_s: float | None = None
    """New weights, and what the first token after them took longer; None if not offered."""
    kl: dict[str, float] | None = None
    figures: dict[str, Figure] = field(default_factory=dict[str, Figure])


def bench_engine(*, peers: str, threads: str, only: str, repetitions: int, as_json: bool) -> int:
    """Measure ours, the roofs and the named peers (comma-separated). Returns an exit code."""
    from practicum.build import fetch

    named = [name for name in peers.split(",") if name]
    check_peers(named)
    counts = [_number_of_threads(text) for text in threads.split(",")]
    parts = [part for part in only.split(",") if part] or list(PARTS)
    for part in parts:
        if part not in (*PARTS, FRONTIER):
            raise UsageError(f"no part {part!r}.{did_you_mean(part, [*PARTS, FRONTIER])}")
    if repetitions < 1:
        raise UsageError(f"--repetitions must be at least 1, not {repetitions}")
    folder = fetch(MODEL)
    tokens = Tokens(folder)
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="practicum-bench-") as scratch:
        for num_threads in counts:
            contenders = line_up(folder, named, num_threads, Path(scratch))
            measured += _measure(contenders, tokens, num_threads, parts, repetitions)
    if FRONTIER in parts:
        measure_kl(folder, [m for m in measured if m.num_threads == counts[0]])
    if as_json:
        print(json.dumps([asdict(m) for m in measured], indent=1))
    else:
        engine_report.show(measured, parts)
    return 0


def _number_of_threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        raise UsageError(
            f"--threads takes numbers from 1 to {MOST_THREADS} like `1,2`, not {text!r}"
        )
    return int(text)


def _measure(
    contenders: Sequence[Contender],
    tokens: Tokens,
    num_threads: int,
    parts: Sequence[str],
    repetitions: int,
) -> list[Measured]:
    """Start everyone, one after the other; then let them take turns with every work."""
    # The frontier sets the speed of the rollout against the KL.
    needed = dict.fromkeys("rollout" if part == FRONTIER else part for part in parts)
    makes = [make for part in needed for make in PARTS[part]]
    result: list[Measured] = []
    answers: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        racing: list[tuple[Measured, Running]] = []
        for contender in contenders:
            measured, running = _start(stack, contender, tokens, num_threads)
            result.append(measured)
            if not measured.absent:
                racing.append((measured, running))
        # Repetition 0 warms up: kernels are chosen and caches are filled. It does not count.
        for number in range((repetitions + 1) * len(makes)):
            make = makes[number % len(makes)]
            work = make(tokens, number + 1)
            for measured, running in racing:
                answer = _run(running, work)
                if number >= len(makes):
                    answers.setdefault((measured.name, work.name), []).append(answer)
            _say(f"{num_threads} threads: {work.name}, {number // len(makes)} of {repetitions}")
        for measured, running in racing:
            if measured.name not in ROOFS:
                measured.update_s = _update_s(running.ask({"do": "update"}))
            measured.figures |= {
                work: _figure(work, of_work)
                for (name, work), of_work in answers.items()
                if name == measured.name
            }
    return result


def _start(
    stack: ExitStack, contender: Contender, tokens: Tokens, num_threads: int
) -> tuple[Measured, Running]:
    _say(f"{num_threads} threads: starting {contender.name}")
    measured = Measured(contender.name, num_threads, contender.note)
    running = stack.enter_context(Running(contender))
    answer = _run(running, rollout_workload.first_token(tokens))
    measured.absent = answer.get("absent", "")
    if not measured.absent:
        measured.start_s = running.age_s
        measured.start_cpu_s = answer["total_cpu_s"]
    return measured, running


def _run(running: Running, work: Work) -> dict[str, Any]:
    rounds = [[asdict(ask) for ask in asks] for asks in work.rounds]
    answer = running.ask({"do": "run", "rounds": rounds})
    if "absent" not in answer and answer["num_output"] != work.num_output_tokens:
        raise InfraError(
            f"{running.contender.name} gave {answer['num_output']} tokens for {work.name} instead "
            f"of {work.num_output_tokens}: its speed means nothing"
        )
    return answer


def _figure(work: str, answers: Sequence[Mapping[str, Any]]) -> Figure:
    per_cpu_s = [answer["num_output"] / answer["cpu_s"] for answer in answers]
    last = answers[-1]
    known = last["num_reused"] is not None and last["num_prompt"]
    return Figure(
        work=work,
        tokens_per_cpu_s=statistics.median(per_cpu_s),
        tokens_per_s=statistics.median(a["num_output"] / a["wall_s"] for a in answers),
        slowest_per_cpu_s=min(per_cpu_s),
        peak_mb=max(answer["peak_mb"] for answer in answers),
        reused=last["num_reused"] / last["num_prompt"] if known else None,
    )


def _update_s(answer: Mapping[str, float]) -> float | None:
    if not answer:
        return None
    slower = max(0.0, answer["token_cpu_after_s"] - answer["token_cpu_before_s"])
    return answer["update_s"] + slower


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
