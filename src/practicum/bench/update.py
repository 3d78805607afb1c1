"""`practicum bench update`: seconds and memory of one GRPO update, ours and TRL's side by side.

Every contender runs alone in a process of its own, in turn, on the same questions; the first update
is a warm-up and left out. What counts is the ratio of medians in one run: absolute times are the
machine's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from practicum.bench import workload
from practicum.errors import InfraError, UsageError, did_you_mean

NUM_STEPS = 4
PEERS = {"trl": Path(".peers/trl/bin/python")}
MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Measured:
    """One contender."""

    name: str
    dtype: str
    seconds: float
    """Median of an update, rollout to optimizer."""
    slowest_s: float
    peak_gb: float
    mean_length: float
    phases: dict[str, float]


def bench_update(*, peer: str | None, as_json: bool) -> int:
    """Measure ours, and the peer if one is named. Returns an exit code."""
    from practicum.build import fetch

    if peer is not None and peer not in PEERS:
        raise UsageError(f"no peer {peer!r}.{did_you_mean(peer, PEERS)}")
    if peer is not None and not PEERS[peer].exists():
        raise UsageError(
            f"{PEERS[peer]} is missing: build the peer's environment with `make peers`"
        )
    folder = fetch(MODEL)
    ours = [sys.executable, "-m", "practicum.bench.ours_update"]
    contenders = [("practicum", ours, "bfloat16"), ("practicum", ours, "float32")]
    if peer is not None:
        script = str(Path(__file__).parent / "peers" / f"{peer}_update.py")
        command = [str(PEERS[peer].absolute()), script]
        contenders += [(peer, command, "bfloat16"), (peer, command, "float32")]
    with tempfile.TemporaryDirectory() as scratch:
        work_file = Path(scratch) / "work.json"
        work_file.write_text(json.dumps(_work()))
        measured = [_measure(*contender, folder, work_file) for contender in contenders]
    if as_json:
        print(json.dumps([asdict(m) for m in measured], indent=1))
    else:
        _print(measured)
    return 0


def _work() -> dict[str, Any]:
    return {
        "num_prompts": workload.NUM_PROMPTS,
        "group_size": workload.GROUP_SIZE,
        "max_new_tokens": workload.MAX_NEW_TOKENS,
        "learning_rate": workload.LEARNING_RATE,
        "questions": [asdict(question) for question in workload.questions(NUM_STEPS)],
    }


def _measure(name: str, command: list[str], dtype: str, folder: Path, work_file: Path) -> Measured:
    threads = str(os.cpu_count() or 1)
    finished = subprocess.run(
        [*command, str(folder), str(work_file), dtype, str(NUM_STEPS), threads],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": threads},
    )
    if finished.returncode:
        tail = "\n".join(finished.stderr.splitlines()[-15:])
        raise InfraError(f"{name} in {dtype} failed with code {finished.returncode}:\n{tail}")
    result = json.loads(finished.stdout.splitlines()[-1])
    seconds: list[float] = result["seconds"][1:]
    phases: list[dict[str, float]] = result.get("phases", [])[1:]
    return Measured(
        name=name,
        dtype=dtype,
        seconds=statistics.median(seconds),
        slowest_s=max(seconds),
        peak_gb=result["peak_gb"],
        mean_length=statistics.fmean(result["mean_length"]),
        phases={key: statistics.median(p[key] for p in phases) for key in phases[0]}
        if phases
        else {},
    )


def _print(measured: list[Measured]) -> None:
    table = Table(title="One GRPO update: 8 prompts x 8 samples, SmolLM2-135M (from Q4_1)")
    columns = ("", "dtype", "s (median)", "s (slowest)", "peak GB", "tokens", "x ours", "phases")
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "dtype", "phases") else "right")
    ours = {m.dtype: m.seconds for m in measured if m.name == "practicum"}
    for m in measured:
        phases = ", ".join(
            f"{key.removesuffix('_s')} {value:.2f}" for key, value in m.phases.items()
        )
        table.add_row(
            m.name,
            m.dtype,
            f"{m.seconds:.2f}",
            f"{m.slowest_s:.2f}",
            f"{m.peak_gb:.1f}",
            f"{m.mean_length:.1f}",
            f"{m.seconds / ours[m.dtype]:.1f}",
            phases,
        )
    Console().print(table)
