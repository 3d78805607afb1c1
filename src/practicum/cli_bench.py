"""The commands `practicum bench ...`: what is measured is in `practicum.bench`."""

from __future__ import annotations

from cyclopts import App

from practicum.cli_options import Json
from practicum.errors import UsageError

bench = App(name="bench", help="Measure ourselves beside peers in their own environments.")


@bench.default
def bench_one(what: str = "update", *, peer: str | None = None, json: Json = False) -> int:
    """Measure ourselves, side by side with a peer in its own environment (`make peers`).

    Parameters
    ----------
    what
        `update`: seconds and memory of one GRPO update, by phase; `engine` and `long` have their
        own options.
    peer
        `trl`.
    """
    if what != "update":
        raise UsageError(f"no benchmark {what!r}; there is: update, engine, long")
    from practicum.bench.update import bench_update

    return bench_update(peer=peer, as_json=json)


@bench.command
def engine(
    *,
    peers: str = "",
    threads: str = "1",
    only: str = "",
    repetitions: int = 3,
    json: Json = False,
) -> int:
    """Measure generation: tokens per CPU second and second, memory, start, reuse, the roof.

    Parameters
    ----------
    peers
        Any of `transformers,vllm,vllm-compiled,openvino`.
    threads
        Numbers of threads, such as `1,2`.
    only
        Any of `rollout,rows,shared,turns,frontier`; all but the last if none is named.
    repetitions
        How often every contender does every work; medians count.
    """
    from practicum.bench.engine import bench_engine

    return bench_engine(
        peers=peers, threads=threads, only=only, repetitions=repetitions, as_json=json
    )


@bench.command
def long(*, only: str = "", threads: int = 1, quick: bool = False, json: Json = False) -> int:
    """Measure long contexts: prefill, decode, what approximations cost, bytes per token.

    Parameters
    ----------
    only
        Any of `prefill,tiny,sinks,decode,quality,needles,costs`; all if none is named.
    threads
        Number of threads.
    quick
        Small sizes, only to see that everything runs.
    """
    from practicum.bench.long_context import bench_long

    return bench_long(only=only, threads=threads, quick=quick, as_json=json)
