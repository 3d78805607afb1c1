"""The folder where models are kept, and how one gets into it: whole or not at all.

A model is built in a folder beside its place and renamed into it at the end, under a lock that dies
with its process. So a reader never sees half a model, and two processes at once build it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from practicum.errors import InfraError

MANIFEST = "manifest.json"


def cache_folder() -> Path:
    """`$PRACTICUM_CACHE`, or `~/.cache/practicum`."""
    chosen = os.environ.get("PRACTICUM_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "practicum"


def kept_model(name: str, cache: Path | None = None, *, verify: bool = False) -> Path | None:
    """The kept model's folder if it is there and whole, else None.

    Whole means that every file has the size its manifest says; with `verify`, also the digest.
    """
    folder = (cache or cache_folder()) / "models" / name
    try:
        manifest = cast(dict[str, Any], json.loads((folder / MANIFEST).read_text()))
        for file_name, (size, digest) in manifest["files"].items():
            path = folder / file_name
            if path.stat().st_size != size or (verify and file_digest(path) != digest):
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return folder


def keep_model(
    name: str, build: Callable[[Path], None], cache: Path | None = None, *, verify: bool = False
) -> Path:
    """Put what `build` writes into an empty folder into the cache, unless it is there by then.

    What is there but not whole is replaced. Raises InfraError if the cache cannot be written.
    """
    models = (cache or cache_folder()) / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{name}.lock"):
            if folder := kept_model(name, cache, verify=verify):
                return folder
            return _build_and_rename(models / name, build)
    except OSError as error:
        raise InfraError(
            f"cannot write the model cache {models}: {error}; free some space, or name another "
            "place with PRACTICUM_CACHE"
        ) from error


def file_digest(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build_and_rename(place: Path, build: Callable[[Path], None]) -> Path:
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        partial.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
        build(partial)
        files = {
            path.name: (path.stat().st_size, file_digest(path))
            for path in sorted(partial.iterdir())
        }
        (partial / MANIFEST).write_text(json.dumps({"files": files}, indent=2) + "\n")
        if place.exists():  # there, but not whole: we hold the lock, so nobody is writing it
            shutil.rmtree(place)
        partial.rename(place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return place


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, and so does the death of the process
