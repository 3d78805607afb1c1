"""`practicum bench long`: long prompts and long caches on this machine, exact and approximate.

The one thing to know: every part is independent and prints as soon as it is done; `--quick` shrinks
all of them to seconds, to see that they run. What is called an extrapolation was not run.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from practicum.bench.long_costs import costs
from practicum.bench.long_quality import needles, quality
from practicum.bench.long_work import (
    Reader,
    Spent,
    extended,
    fill_pages,
    measured,
    random_tokens,
)
from practicum.errors import UsageError, did_you_mean
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.pages import num_pages
from practicum.policy.model.hub import fetch_model
from practicum.policy.model.tiny import tiny_config, write_tiny
from practicum.policy.model.weights import load_transformer

MODEL = "smollm2-135m"
SINKS = 4
LOCAL = 1024

ATTENTIONS: Mapping[str, KvPolicy] = {
    "full, bf16": KvPolicy(),
    "full, int8": KvPolicy(bits=8, recent=128),
    "full, int4": KvPolicy(bits=4, recent=128),
    f"{SINKS} sinks + {LOCAL} local": KvPolicy(window=LOCAL, sinks=SINKS),
    "top 32 pages, bf16": KvPolicy(recent=128, top_pages=32),
    "top 32 pages, int4": KvPolicy(bits=4, recent=128, top_pages=32),
}

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    rows: Callable[[bool], list[Row]]


def prefill(quick: bool) -> list[Row]:
    """Full attention over a long prompt, the rotary table stretched four times by YaRN."""
    model = extended(fetch_model(MODEL), 4.0)
    rows: list[Row] = []
    for length in (512, 1024) if quick else (8192, 32768):
        reader, spent = Reader(model, KvPolicy(), length), list[Spent]()
        with measured(spent):
            reader.read(random_tokens(length, model.shape.vocab_size, 0))
        rows.append(_row({"model": MODEL, "prompt": length}, spent[0], length))
    return rows


def tiny(quick: bool) -> list[Row]:
    """Full attention over 128k tokens on the tiny model."""
    length = 1024 if quick else 131072
    with tempfile.TemporaryDirectory(prefix="practicum-long-") as folder:
        write_tiny(Path(folder), config=tiny_config(context_length=length))
        model = load_transformer(Path(folder), torch.bfloat16)
    rows: list[Row] = []
    for name in ("full, bf16",):
        reader, spent = Reader(model, ATTENTIONS[name], length), list[Spent]()
        with measured(spent):
            reader.read(random_tokens(length, 256, 0))
        rows.append(_row({"model": "tiny", "prompt": length, "attention": name}, spent[0], length))
    return rows


def sinks(quick: bool) -> list[Row]:
    """Sink + local prefill of 128k tokens, all keys and values kept in 4 bits and swapped."""
    length = 4096 if quick else 131072
    model = extended(fetch_model(MODEL), 16.0)
    policy = KvPolicy(bits=4, window=LOCAL, sinks=SINKS)
    reader, spent = Reader(model, policy, length, Path(tempfile.gettempdir())), list[Spent]()
    with measured(spent):
        reader.read(random_tokens(length, model.shape.vocab_size, 0))
    store, count = reader.runner.store, num_pages(length) - 64  # the recent ones stay
    assert store.coded is not None
    step = 1 if quick else 10
    before = store.coded[::step, :count].clone()
    with measured(spent):
        for page in range(count):
            store.save(page, slot=page)
    store.coded[:, :count] = 0
    with measured(spent):
        for page in range(count):
            store.load(page, page, lambda: ())
    assert torch.equal(before, store.coded[::step, :count]), "the swap space gave back other bytes"
    kept = policy.page_bytes(model.shape, model.dtype) * num_pages(length) / 2**20
    row = dict(_row({"model": MODEL, "prompt": length}, spent[0], length))
    row |= {"kept MB": round(kept), "swap out s": spent[1].wall_s, "swap in s": spent[2].wall_s}
    return [row | {"peak MB": round(max(one.peak_mb for one in spent))}]


def decode(quick: bool) -> list[Row]:
    """Steps of one row on a synthetic cache of 128k tokens."""
    length, repeats = (2048, 1) if quick else (131072, 5)
    model = extended(fetch_model(MODEL), 16.0)
    rows: list[Row] = []
    for name, policy in ATTENTIONS.items():
        reader, spent = Reader(model, policy, length + 32), list[Spent]()
        fill_pages(reader.runner, length)
        reader.sequence.tokens.extend([0] * length)
        reader.read([1], length)
        with measured(spent):
            for step in range(repeats):
                reader.read([step], length + 1)
        bytes_per_token = policy.page_bytes(model.shape, model.dtype) / 32
        rows.append(
            {
                "attention": name,
                "cache": length,
                "ms/token": 1e3 * spent[0].wall_s / repeats,
                "cpu ms/token": 1e3 * spent[0].cpu_s / repeats,
                "bytes/token": round(bytes_per_token),
                "cache MB": round(bytes_per_token * length / 2**20),
            }
        )
        del reader
        gc.collect()
    return rows


PARTS: Mapping[str, Part] = {
    "prefill": Part("Full attention, 135M, rotary table stretched x 4", prefill),
    "tiny": Part("Full attention over 128k tokens, tiny model", tiny),
    "sinks": Part("Sink + local prefill of 128k tokens, 135M, kept in int4 and swapped", sinks),
    "decode": Part("One row on a synthetic cache, 135M", decode),
    "quality": Part(
        "Against exact attention: KL and change of log-probs, second half of 2,048 tokens of prose",
        lambda quick: quality(fetch_model(MODEL), quick),
    ),
    "needles": Part(
        "Share of facts found again among eight, 135M within its own context of 8k",
        lambda quick: needles(fetch_model(MODEL), ATTENTIONS, quick),
    ),
    "costs": Part(
        "Keys and values of real shapes. EXTRAPOLATED: computed from shapes, not run", costs
    ),
}


def bench_long(*, only: str, threads: int, quick: bool, as_json: bool) -> int:
    """Run the named parts, or all, and print a table of each. Raises UsageError for other names."""
    names = [name for name in only.split(",") if name] or list(PARTS)
    for name in names:
        if name not in PARTS:
            raise UsageError(f"no part {name!r}.{did_you_mean(name, [*PARTS])}")
    if threads < 1:
        raise UsageError(f"--threads must be at least 1, not {threads}")
    torch.set_num_threads(threads)
    console, results = Console(), dict[str, Any]()
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results[name] = PARTS[name].rows(quick)
        gc.collect()
        if not as_json:
            console.print(_table(PARTS[name].title, results[name]))
    if as_json:
        print(json.dumps(results, indent=1))
    return 0


def _row(what: Row, spent: Spent, num_tokens: int) -> Row:
    return {
        **what,
        "cpu s": spent.cpu_s,
        "tokens/cpu-s": num_tokens / spent.cpu_s,
        "wall s": spent.wall_s,
        "peak MB": round(spent.peak_mb),
    }


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    return table


def _text(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
