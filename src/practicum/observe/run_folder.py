"""`runs/<id>/`: where everything of one run lives, and which process may write it.

manifest.json  format, versions, creation    config.json    every setting, resolved
metrics.jsonl  numbers of each step           log.jsonl      events and findings
trajectories/  the store and its ledger       ckpt/          checkpoints
eval/*.json    evaluations                    report.html    all of it, for reading
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast

from practicum.config import RunConfig, resolve
from practicum.errors import StoreError, UsageError, did_you_mean
from practicum.observe.files import create_file, disk_error, replace_file
from practicum.observe.lock import Lock

Kind = Literal["train", "sft"]
"""What a run does: all of the recipe, or only its supervised stage."""

RUN_FORMAT = 1
_MANIFEST, _CONFIG = "manifest.json", "config.json"
_FOLDERS = ("trajectories", "ckpt", "eval")
_SKELETON = {*_FOLDERS, _CONFIG, "lock"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PACKAGES = ("practicum", "torch", "transformers", "numpy", "pyarrow", "msgspec")


class RunFolder:
    """One run's folder; `create` and `open(..., own=True)` hold its lock until `close`.

    Example:
        with RunFolder.create(Path("runs"), "demo", config) as run:
            MetricsLog(run.path)
    """

    def __init__(self, path: Path, lock: Lock | None) -> None:
        self.path = path
        self._lock = lock

    @staticmethod
    def create(root: Path, name: str, config: RunConfig, *, kind: Kind = "train") -> RunFolder:
        """Make the folder, own it, and write down the configuration.

        Raises UsageError for an unusable name or a run that already exists.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot name a run: use letters, digits, '.', '_' and '-' "
                "(at most 100, beginning with a letter or digit)"
            )
        path = root / name
        _refuse_existing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(path, error) from error
        lock = Lock(path)
        try:
            for folder in _FOLDERS:
                (path / folder).mkdir(exist_ok=True)
            replace_file(path / _CONFIG, config.model_dump_json(indent=2).encode() + b"\n")
            manifest = json.dumps(_facts(name, kind), indent=2)
            create_file(path / _MANIFEST, manifest.encode() + b"\n")
        except FileExistsError:  # another process created the same run a moment ago
            lock.release()
            raise UsageError(_exists(path)) from None
        except BaseException:
            lock.release()
            raise
        return RunFolder(path, lock)

    @staticmethod
    def open(path: Path, *, own: bool = False) -> RunFolder:
        """An existing run, for reading or (`own`) for going on with it.

        Raises UsageError if there is none, it has another format, or another process owns it.
        """
        if not (path / _MANIFEST).is_file():
            what = "is not a run folder (it has no manifest.json)" if path.exists() else "is no run"
            raise UsageError(f"{path} {what}.{_similar(path)}")
        run = RunFolder(path, None)
        found = run.manifest().get("format")
        if found != RUN_FORMAT:
            raise UsageError(
                f"the run {path} has format {found}, this version reads {RUN_FORMAT}; "
                "use the version of practicum that wrote it"
            )
        if own:
            run._lock = Lock(path)
        return run

    def manifest(self) -> Mapping[str, Any]:
        """Format, kind, creation time and the versions of what wrote the run."""
        return _read_json(self.path / _MANIFEST)

    def config(self) -> RunConfig:
        """Every setting of the run."""
        return resolve(_read_json(self.path / _CONFIG), {}, str(self.path / _CONFIG))

    def write_vocabulary(self, pieces: Sequence[str]) -> None:
        """Keep the text of every token id, so that reports can show tokens without a tokenizer."""
        content = json.dumps(list(pieces), ensure_ascii=True)
        replace_file(self.vocabulary, content.encode())

    def remove_if_unused(self) -> None:
        """Remove the folder of a run that was refused before it did anything worth keeping."""
        if any(self.trajectories.rglob("*.parquet")) or any(self.evals.iterdir()):
            return
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Let other processes own the run. Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def kind(self) -> Kind:
        return self.manifest().get("kind", "train")

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    @property
    def checkpoints(self) -> Path:
        return self.path / "ckpt"

    @property
    def evals(self) -> Path:
        return self.path / "eval"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def vocabulary(self) -> Path:
        """Optional: the text of every token id, so that reports can show tokens as text."""
        return self.path / "vocabulary.json"


def free_name(root: Path, name: str) -> str:
    """The name itself, or `name-2`, `name-3`, ... if a run of that name exists."""
    number, candidate = 1, name
    while (root / candidate).exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def _refuse_existing(path: Path) -> None:
    """A folder that a killed `create` left without its manifest, the last file, is no run yet."""
    if not path.exists():
        return
    foreign = not path.is_dir() or {found.name for found in path.iterdir()} - _SKELETON
    if foreign or any(found.is_dir() and any(found.iterdir()) for found in path.iterdir()):
        raise UsageError(_exists(path))


def _exists(path: Path) -> str:
    return (
        f"{path} already exists and is not empty; continue it with `practicum resume {path}`, "
        "or choose another `name`"
    )


def _similar(path: Path) -> str:
    siblings = [found.parent.name for found in path.parent.glob(f"*/{_MANIFEST}")]
    if not siblings:
        return f" There is no run in {path.parent}."
    return did_you_mean(path.name, siblings)


def _facts(name: str, kind: Kind) -> dict[str, Any]:
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in _PACKAGES:  # the metadata, not the package: nothing heavy is imported
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "format": RUN_FORMAT,
        "id": name,
        "kind": kind,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise StoreError(f"cannot read {path}: it holds no JSON object")
    return cast("dict[str, Any]", found)
