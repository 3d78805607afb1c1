"""Compile the kernels once for this machine and keep the library in the cache folder.

They run on every x86-64 processor with AVX2 (since Haswell and Zen), faster with AVX-512 and its
bfloat16 products (Sapphire Rapids, Zen 4), and use matrix tiles (AMX) where there are some.
`PRACTICUM_NATIVE` chooses: `auto` (default) for the best there is, `avx512` without tiles, `avx2`,
`0` for none.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

from practicum.policy.model.cache import cache_folder

SOURCES = Path(__file__).parent
FLAGS = (
    "-O3",
    "-std=c++20",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-pthread",
)
"""The compiler may not contract a product and a sum by itself: results must not depend on it."""

WITHOUT_TILES = ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "auto": ("-march=native",),
    "avx512": ("-march=native", *WITHOUT_TILES),
    "avx2": ("-march=native", *WITHOUT_TILES, "-mno-avx512f"),
}
NEEDED = {"auto": {"avx2", "fma"}, "avx512": {"avx512_bf16"}, "avx2": {"avx2", "fma"}}
"""What the processor must know, by the names in `/proc/cpuinfo`."""


@functools.cache
def load() -> ctypes.CDLL | None:
    """The library, or None. A failing compiler or an unknown choice is a warning, once."""
    compiler = _compiler()
    if (reason := missing()) is not None or compiler is None:
        if _chosen() not in (*INSTRUCTION_SETS, "0"):
            warnings.warn(f"{reason}; going on without compiled kernels, slower", stacklevel=2)
        return None
    flags = (*FLAGS, *INSTRUCTION_SETS[_chosen()])
    try:
        return ctypes.CDLL(str(_built(compiler, flags)))
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        warnings.warn(
            f"the compiled kernels could not be built ({detail.strip()[-500:]}); going on without "
            "them, slower. PRACTICUM_NATIVE=0 silences this",
            stacklevel=2,
        )
        return None


def missing() -> str | None:
    """Why there can be no kernels here; None if they can be built."""
    chosen = _chosen()
    if chosen == "0":
        return "PRACTICUM_NATIVE=0 switches them off"
    if chosen not in INSTRUCTION_SETS:
        return f"PRACTICUM_NATIVE={chosen} is none of {', '.join(INSTRUCTION_SETS)}, 0"
    lacking = NEEDED[chosen] - set(processor().split())
    if lacking:
        return f"the processor has no {', '.join(sorted(lacking))}"
    return None if _compiler() else "there is no C++ compiler"


def _chosen() -> str:
    return os.environ.get("PRACTICUM_NATIVE") or "auto"


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


def _built(compiler: str, flags: tuple[str, ...]) -> Path:
    """The library of these sources for this machine; built if it is not there yet."""
    state = hashlib.sha256("\n".join((compiler, *flags, platform.machine(), processor())).encode())
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        state.update(path.read_bytes())
    folder = cache_folder() / "native"
    library = folder / f"kernels-{state.hexdigest()[:16]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh = Path(scratch) / library.name
        command = [compiler, *flags, "-w", "-o", str(fresh), str(SOURCES / "kernels.cpp")]
        subprocess.run(command, check=True, capture_output=True, text=True)
        fresh.replace(library)  # whole or not at all; of two builders the last wins, equally good
    return library


def processor() -> str:
    """What the processor can do, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
