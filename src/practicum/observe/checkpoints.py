"""Checkpoints that are whole or absent: a manifest, written last, names every file by its digest.

Knows nothing of weights: the trainer writes what it likes into a folder. A torn or altered
checkpoint is passed over with a warning, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import StoreError, UsageError
from practicum.observe.files import (
    TEMPORARY,
    DamagedWarning,
    disk_error,
    remove_unfinished,
    replace_file,
    sync,
)

CHECKPOINT_FORMAT = 1
_STATE, _MANIFEST = "state.json", "manifest.json"
_REPLACED = ".replaced"
_STEP = re.compile(r"\d{6,}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint."""

    step: int
    """Number of steps done."""
    folder: Path
    state: Mapping[str, Any]
    """What `save` was given."""


class Checkpoints:
    """The checkpoints of one run, for the process that owns it. Readers use `latest_checkpoint`."""

    def __init__(self, folder: Path, keep: int) -> None:
        assert keep >= 1, "at least one checkpoint is kept"
        self.folder = folder
        self._keep = keep
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(folder, error) from error
        self._clean()

    def save(
        self,
        step: int,
        write: Callable[[Path], None],
        state: Mapping[str, Any],
        estimate_bytes: int = 0,
    ) -> Checkpoint:
        """Write a checkpoint and remove the oldest beyond `keep`, and any of a later, dropped step.

        `write` fills an empty folder; `state` must be JSON-able. The room needed is the estimate,
        or the size of the last checkpoint. Raises StoreError if the disk is full; nothing that was
        there before is touched then.
        """
        final = self.folder / f"{step:06d}"
        self._check_room(final, estimate_bytes)
        temporary = self.folder / f"{final.name}{TEMPORARY}{secrets.token_hex(4)}"
        try:
            temporary.mkdir()
            write(temporary)
            own = {_STATE, _MANIFEST} & {path.name for path in temporary.iterdir()}
            assert not own, f"{sorted(own)} are names of the checkpoint itself"
            (temporary / _STATE).write_text(json.dumps(state, sort_keys=True))
            _seal(temporary, step)
            self._publish(temporary, final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise disk_error(final, error) from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._prune(step)
        return Checkpoint(step, final, state)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, None if there is none."""
        return latest_checkpoint(self.folder)

    def _check_room(self, final: Path, estimate_bytes: int) -> None:
        if not estimate_bytes and (existing := _folders(self.folder)):
            estimate_bytes = sum(path.stat().st_size for path in _files(existing[-1]))
        needed = estimate_bytes + estimate_bytes // 20
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise StoreError(
                f"the checkpoint {final} needs about {needed / 1e6:.0f} MB, but only "
                f"{free / 1e6:.0f} MB are free there; free some space, lower `checkpoint.keep` or "
                "choose another place with `output`, then resume"
            )

    def _publish(self, temporary: Path, final: Path) -> None:
        replaced = final.with_name(final.name + _REPLACED)
        if final.exists():  # a damaged one of the same step, or the same step of an older lineage
            final.rename(replaced)
        temporary.rename(final)
        sync(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def _prune(self, step: int) -> None:
        folders = _folders(self.folder)
        kept = [folder for folder in folders if int(folder.name) <= step][-self._keep :]
        for folder in set(folders) - set(kept):
            shutil.rmtree(folder, ignore_errors=True)

    def _clean(self) -> None:
        """Finish or remove what a killed writer left half done."""
        remove_unfinished(self.folder)
        for path in self.folder.glob(f"*{_REPLACED}"):
            final = path.with_name(path.name.removesuffix(_REPLACED))
            if final.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.rename(final)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; damaged ones are named in a DamagedWarning.

    Raises UsageError if the newest readable one has another format version.
    """
    for candidate in reversed(_folders(folder)):
        try:
            return verify(candidate)
        except StoreError as error:
            message = f"{error}; falling back to the checkpoint before it"
            warnings.warn(message, DamagedWarning, stacklevel=2)
    return None


def verify(folder: Path) -> Checkpoint:
    """Read a checkpoint and check every file against the manifest.

    Raises StoreError naming the first thing that does not fit, UsageError for another format.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())
        found, step, listed = manifest["format"], int(manifest["step"]), dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the checkpoint {folder} has no readable manifest ({error})") from error
    if found != CHECKPOINT_FORMAT:
        raise UsageError(
            f"the checkpoint {folder} has format {found}, this version reads {CHECKPOINT_FORMAT}; "
            "use the version of practicum that wrote it"
        )
    present = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    present.pop(_MANIFEST)
    if set(present) != set(listed):
        odd = min(set(present) ^ set(listed))
        raise StoreError(f"the checkpoint {folder} and its manifest differ on the file {odd!r}")
    for name, path in sorted(present.items()):
        if _entry(path) != listed[name]:
            raise StoreError(f"the file {path} does not match its digest in the manifest")
    return Checkpoint(step, folder, json.loads((folder / _STATE).read_text()))


def _seal(folder: Path, step: int) -> None:
    files = {path.relative_to(folder).as_posix(): _entry(path) for path in _files(folder)}
    for path in _files(folder):
        sync(path)
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            sync(path)
    manifest = {"format": CHECKPOINT_FORMAT, "step": step, "files": files}
    replace_file(folder / _MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _folders(folder: Path) -> list[Path]:
    """Published checkpoints, oldest first."""
    found = [path for path in folder.glob("*") if path.is_dir() and _STEP.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name))
