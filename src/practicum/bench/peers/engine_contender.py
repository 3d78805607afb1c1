"""What every contender of `practicum bench engine` does around its engine: one command, one answer.

Standard library only, because it runs in each peer's own environment. Commands come as JSON, one a
line; answers go out on what was standard output, and whatever a library prints goes to stderr.

    {"do": "run", "rounds": [[ask, ...], ...]}   seconds, tokens and memory of the work
    {"do": "update"}                             seconds of new weights, and of a token after them
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

Json = dict[str, Any]
Run = Callable[[list[list[Json]]], Json]


@dataclass(frozen=True)
class Answer:
    """One completion."""

    token_ids: list[int]
    num_reused: int | None = None
    """Prompt tokens that were not computed again; None if the engine does not say."""


Generate = Callable[[list[list[int]], list[int], list[int]], list[Answer]]
"""Prompts, numbers of new tokens and seeds of completions asked for at once -> the completions."""


def claim_stdout() -> TextIO:
    """Standard output for answers alone; call it before anything heavy is imported."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def obey(answers: TextIO, run: Run, update: Callable[[], None] | None = None) -> None:
    """Answer commands until there are no more."""
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "run":
            answer = _measured(run, command["rounds"])
        else:
            answer = {} if update is None else _measure_update(run, update)
        print(json.dumps(answer), file=answers, flush=True)


def say_absent(answers: TextIO, reason: str) -> None:
    """Answer the first command by saying that there is nothing to measure."""
    sys.stdin.readline()
    print(json.dumps({"absent": reason}), file=answers, flush=True)


def player(generate: Generate) -> Run:
    """Play rounds of completions; every conversation goes on from what was sampled in it."""

    def play(rounds: list[list[Json]]) -> Json:
        histories: dict[int, list[int]] = {}
        num_prompt = num_output = 0
        reused: list[int | None] = []
        for asks in rounds:
            prompts: list[list[int]] = []
            for ask in asks:
                history = histories.setdefault(ask["conversation"], [])
                history += ask["append_ids"]
                prompts.append([ask["first_id"], *history[1:]])
            budgets = [ask["max_new_tokens"] for ask in asks]
            completed = generate(prompts, budgets, [ask["seed"] for ask in asks])
            for ask, prompt, answer in zip(asks, prompts, completed, strict=True):
                wanted, found = ask["max_new_tokens"], len(answer.token_ids)
                assert found == wanted, f"{found} tokens instead of {wanted}"
                histories[ask["conversation"]] += answer.token_ids
                num_prompt += len(prompt)
                num_output += found
                reused.append(answer.num_reused)
        known = [number for number in reused if number is not None]
        return {
            "num_prompt": num_prompt,
            "num_output": num_output,
            "num_reused": sum(known) if known else None,
        }

    return play


def _measured(run: Run, rounds: list[list[Json]]) -> Json:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    wall, cpu = time.perf_counter(), cpu_s()
    result = run(rounds)
    return result | {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": cpu_s() - cpu,
        "total_cpu_s": cpu_s(),
        "peak_mb": _peak_mb(),
    }


def _measure_update(run: Run, update: Callable[[], None]) -> Json:
    """An engine may do part of the work with the next token: so that is timed too, by CPU."""

    def one_token(mark: int) -> float:
        prompt = [mark, *range(1000, 1031)]
        ask = {"conversation": 0, "append_ids": prompt, "max_new_tokens": 1, "seed": 0}
        started = cpu_s()
        run([[ask | {"first_id": mark}]])
        return cpu_s() - started

    before = statistics.median(one_token(100 + mark) for mark in range(5))
    updates: list[float] = []
    after: list[float] = []
    for mark in range(5):
        started = time.perf_counter()
        update()
        updates.append(time.perf_counter() - started)
        after.append(one_token(200 + mark))
    return {
        "update_s": statistics.median(updates),
        "token_cpu_before_s": before,
        "token_cpu_after_s": statistics.median(after),
    }


def cpu_s() -> float:
    """CPU seconds of this process, and of the children it has."""
    ticks = 0
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
