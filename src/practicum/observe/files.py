"""Files that are either wholly there or not there at all, and that survive a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path

from practicum.errors import StoreError

TEMPORARY = ".tmp-"
"""Part of the name of everything unfinished; whoever owns the folder may remove it."""


class DamagedWarning(UserWarning):
    """Something on disk does not match its digest or is torn; this names it, and it is left out."""


def sync(path: Path) -> None:
    """Make a file's content, or a folder's names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Create the file or replace it in one step; durable on return."""
    with _temporary(path, content) as temporary:
        os.replace(temporary, path)


def create_file(path: Path, content: bytes) -> None:
    """Create the file in one step; durable on return. Raises FileExistsError, never overwrites."""
    with _temporary(path, content) as temporary:
        os.link(temporary, path)  # unlike rename, a link refuses an existing name


def remove_unfinished(folder: Path) -> None:
    """Remove the files and folders that a killed writer left half done in this folder."""
    for path in folder.glob(f"*{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def torn_bytes(path: Path) -> int:
    """Length of an unfinished last line, 0 if the file ends in a newline, is empty or absent."""
    content = path.read_bytes() if path.exists() else b""
    return len(content) - (content.rfind(b"\n") + 1)


@contextlib.contextmanager
def _temporary(path: Path, content: bytes) -> Generator[Path]:
    temporary = path.with_name(f"{path.name}{TEMPORARY}{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
        temporary.unlink(missing_ok=True)
        sync(path.parent)
    except FileExistsError:
        temporary.unlink(missing_ok=True)
        raise
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> StoreError:
    """What went wrong on disk, where, and what to do."""
    advice = {
        errno.ENOSPC: "free some space, or choose another place with `output`",
        errno.EDQUOT: "your quota is used up; free some space, or choose another `output`",
        errno.EROFS: "the file system is read-only; choose another place with `output`",
        errno.EACCES: "you may not write there; choose another place with `output`",
    }
    reason = error.strerror or type(error).__name__
    hint = advice.get(
        error.errno or 0, "check the disk; the run can be resumed from its checkpoint"
    )
    return StoreError(f"cannot write {path}: {reason}; {hint}")
