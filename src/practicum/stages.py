"""What a run does from start to end: evaluate, train, evaluate again, export, report.

Everything is written down as it happens: `resume` finds out from the run folder where to go on.
"""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import signal
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from practicum.build import Run, assemble
from practicum.config import RunConfig
from practicum.environment.evals.run import evaluate
from practicum.errors import Stopped, StoreError, UsageError
from practicum.observe.checkpoints import Checkpoints
from practicum.observe.evals import drop_later_evals, write_eval
from practicum.observe.files import TEMPORARY, disk_error, sync
from practicum.observe.html import write_report
from practicum.observe.metrics import MetricsLog
from practicum.observe.progress import progress
from practicum.observe.run_folder import Kind, RunFolder, free_name
from practicum.observe.runlog import RunLog
from practicum.observe.store import TrajectoryStore
from practicum.observe.view import view_run
from practicum.protocols import Metrics

console = Console()


def train(config: RunConfig) -> Path:
    """Run a recipe in a new folder below `config.output`. Returns the folder."""
    _refuse_running_loop()
    with _new_folder(config, config.name) as folder:
        _run(config, folder)
        return folder.path


def resume(path: str | Path) -> Path:
    """Go on with a run from its last checkpoint, or from the start if it has none yet."""
    _refuse_running_loop()
    path = Path(path)
    with RunFolder.open(path, own=True) as folder:
        if folder.kind != "train":
            raise UsageError(
                f"{path} is a run of the {folder.kind} stage only, which is not resumed; train on "
                f"from its model with `--model {path / 'model'}`"
            )
        _run(folder.config(), folder)
        return folder.path


def supervise(config: RunConfig) -> Path:
    """Only the supervised stage: warm up, evaluate and export the model."""
    if not config.sft.steps:
        raise UsageError("this recipe has no supervised stage: set `--sft.steps`, such as 60")
    with _new_folder(config, f"{config.name}-sft", "sft") as folder, ExitStack() as stack:
        stack.enter_context(_stoppable("stopped; nothing was kept"))
        run = assemble(config, on_warm_up=_say_warm_up)
        stack.callback(run.close)
        run.check_trainable()
        asyncio.run(_evaluate(run, folder, step=0))
        _export(run, folder)
        console.print(f"model: {folder.path / 'model'}", soft_wrap=True)
        return folder.path


@contextmanager
def _new_folder(config: RunConfig, name: str, kind: Kind = "train") -> Generator[RunFolder]:
    """A run's folder, gone again if the run is refused before it began."""
    root = Path(config.output)
    with RunFolder.create(root, free_name(root, name), config, kind=kind) as folder:
        try:
            yield folder
        except UsageError:
            folder.remove_if_unused()
            raise


def _run(config: RunConfig, folder: RunFolder) -> None:
    """Bring a run from wherever it stands to its end."""
    with ExitStack() as stack:
        stack.enter_context(_stoppable(f"stopped; go on with `practicum resume {folder.path}`"))
        log = RunLog(folder.log)
        stack.callback(log.close)
        checkpoints = Checkpoints(folder.checkpoints, config.checkpoint.keep)
        last = checkpoints.latest()
        run = assemble(
            config,
            on_report=[lambda report: log.findings(report.step, report.findings)],
            on_warm_up=_say_warm_up,
            warm_up=last is None,
        )
        stack.callback(run.close)
        run.check_trainable()
        if not folder.vocabulary.exists():
            folder.write_vocabulary(run.pieces())
        store = TrajectoryStore(folder.trajectories)
        stack.callback(store.close)
        metrics = MetricsLog(folder.path)
        stack.callback(metrics.close)
        if last is not None:
            _restore(run, last.folder, last.state)
            console.print(f"going on after step {last.step}")
        step = run.trainer.version
        store.rewind(step)
        metrics.rewind(step)
        drop_later_evals(folder.evals, step)
        _check_history(store, metrics, step)
        log.event("started", step=step, policy=run.policy.name)
        if run.caveat:
            log.event("caveat", text=run.caveat)
            console.print(f"note: {run.caveat}", soft_wrap=True, markup=False)
        bar = stack.enter_context(progress(config.train.steps, console))

        def checkpoint(done: int) -> None:
            if done % config.checkpoint.every == 0 or done == config.train.steps:
                checkpoints.save(done, run.trainer.save, _state(run), run.checkpoint_bytes)
                log.event("checkpoint", step=done)

        loop = run.loop(store, [metrics, bar], checkpoint)
        asyncio.run(_stages(run, folder, loop.run))
        _conclude(folder)


async def _stages(
    run: Run, folder: RunFolder, train_until: Callable[[int], Awaitable[None]]
) -> None:
    """Alternate training and evaluation; evaluations that are there already are kept."""
    start = run.trainer.version
    for step in _evaluation_steps(run.config):
        if run.trainer.version < step:
            await train_until(step)
        if run.trainer.version == step and not (folder.evals / f"{step:06d}.json").exists():
            await _evaluate(run, folder, step)
    if run.trainer.version > start:
        shutil.rmtree(folder.path / "model", ignore_errors=True)  # of fewer steps
    await asyncio.to_thread(_export, run, folder)


async def _evaluate(run: Run, folder: RunFolder, step: int) -> None:
    if not run.eval_pool:
        return
    console.print(f"evaluating on {len(run.eval_pool)} held-out tasks after {step} steps")
    result = await evaluate(
        run.policy,
        run.eval_pool.values(),
        run.domains,
        run.sandboxes,
        step=step,
        seed=run.config.seed,
    )
    write_eval(folder.evals, result)
    _release_memory()


def _export(run: Run, folder: RunFolder) -> None:
    """Write `model/`, whole or not at all."""
    final = folder.path / "model"
    if final.exists():
        return
    partial = final.with_name(f"model{TEMPORARY}export")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        run.export(partial)
        partial.rename(final)
        sync(folder.path)
    except OSError as error:
        raise disk_error(final, error) from error


def _release_memory() -> None:
    """Give back what the allocator keeps: the peaks of evaluation and training would add up."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _evaluation_steps(config: RunConfig) -> list[int]:
    """Before, after, and every so often between."""
    every, end = config.eval.every, config.train.steps
    return [0, *(range(every, end, every) if every else ()), end]


def _restore(run: Run, folder: Path, state: Mapping[str, Any]) -> None:
    run.trainer.load(folder)
    run.publish()
    run.rollout_engine.next_slot = state["next_slot"]
    run.scheduler.curriculum.restore(state["curriculum"])
    run.env_qc.restore(state["env_qc"])


def _state(run: Run) -> dict[str, object]:
    return {
        "next_slot": run.rollout_engine.next_slot,
        "curriculum": run.scheduler.curriculum.state(),
        "env_qc": run.env_qc.state(),
    }


@contextmanager
def _stoppable(message: str) -> Generator[None]:
    """Treat a request to terminate like Ctrl-C: stop in order, and say how it stands."""
    if threading.current_thread() is not threading.main_thread():  # no signals here
        yield
        return

    # asyncio turns the interrupt into a cancellation, so that everything is closed on the way out
    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, interrupt)
    # a script's background job starts with Ctrl-C ignored, and this would be ignored with it
    previous_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(message) from None
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.signal(signal.SIGINT, previous_interrupt)


def _check_history(store: TrajectoryStore, metrics: MetricsLog, step: int) -> None:
    """What was trained before the checkpoint must still be on record. Raises StoreError."""
    missing = [i for i in range(step) if store.ledger.groups(i) is None]
    if missing or len(metrics.rows()) != step:
        what = f"the ledger of step {missing[0]}" if missing else "part of the metrics"
        raise StoreError(
            f"the run lost {what}, though its checkpoint is of step {step}; put the file back, or "
            "start a new run"
        )


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "this blocks until the run has ended, so it cannot be called inside a running event loop; "
        "use `await asyncio.to_thread(...)`, or the command line from a notebook"
    )


def _say_warm_up(step: int, metrics: Metrics) -> None:
    if step % 20 == 0:
        console.print(f"warm-up step {step}: loss {metrics['sft/loss']:.3f}")


def _conclude(folder: RunFolder) -> None:
    report = write_report(folder.path)
    view_run(folder.path)
    console.print(f"report: {report}", soft_wrap=True)
