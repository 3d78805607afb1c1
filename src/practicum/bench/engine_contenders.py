"""Who takes part in `practicum bench engine`, and how one of them is run: alone in its process.

A contender is started once per number of threads, is told a work at a time (see
`peers/engine_contender.py`), and sleeps on its standard input while others measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from practicum.bench.engine_gguf import export_gguf
from practicum.errors import InfraError, UsageError, did_you_mean
from practicum.policy.model.products import multiplies_half

KV_GIB = 1
"""Room for keys and values, the same for every contender that can be told."""

OURS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "practicum": ("bf16", {}),
    "practicum plain": ("bf16", {"PRACTICUM_NATIVE": "0"}),
    "practicum w8a8": ("w8a8", {}),
}
"""Name -> precision and environment."""

ROOFS: Mapping[str, str] = {"roof bf16": "bf16", "roof w8a8": "w8a8"}

PEERS: Mapping[str, Path] = {
    "transformers": Path(sys.executable),
    "vllm": Path(".peers/vllm/bin/python"),
    "vllm-compiled": Path(".peers/vllm/bin/python"),
    "openvino": Path(".peers/openvino/bin/python"),
}
"""Name -> the interpreter of its environment."""

COMMAND_TIMEOUT_S = 1800.0
ERROR_LINES = 25

PASSIVE = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Threads that wait must not burn the CPU seconds that we compare."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the tables."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    note: str = ""
    """What a reader of the table must know."""


def check_peers(names: Sequence[str]) -> None:
    """Raises UsageError for a peer that we do not know or whose environment is not there."""
    for name in names:
        if name not in PEERS:
            raise UsageError(f"no peer {name!r}.{did_you_mean(name, PEERS)}")
    for name in names:
        if not PEERS[name].exists():
            raise UsageError(
                f"{PEERS[name]} is missing: build the peer's environment with `make peers`"
            )


def line_up(folder: Path, peers: Sequence[str], num_threads: int, scratch: Path) -> list[Contender]:
    """Ours in every precision, the roofs, and the named peers."""
    threads = {"OMP_NUM_THREADS": str(num_threads)}
    listed: list[Contender] = []
    for name, (precision, environment) in OURS.items():
        options = {"precision": precision, "kv_bytes": KV_GIB << 30}
        command = _command(sys.executable, "practicum.bench.ours_engine", folder, options)
        listed.append(Contender(name, command, {**threads, **environment}))
    for name, kind in ROOFS.items():
        command = _command(sys.executable, "practicum.bench.roof", folder, {"kind": kind})
        listed.append(Contender(name, command, threads))
    makers = {
        "transformers": _transformers,
        "vllm": _vllm,
        "vllm-compiled": _vllm,
        "openvino": _openvino,
    }
    return listed + [makers[name](name, folder, num_threads, scratch) for name in peers]


def _faster_dtype() -> tuple[str, str]:
    """In which a peer that multiplies with PyTorch or oneDNN is faster here, and a note."""
    if multiplies_half():
        return "bfloat16", ""
    return "float32", "in float32, which is several times faster than its bfloat16 on this CPU"


def _transformers(name: str, folder: Path, num_threads: int, scratch: Path) -> Contender:
    dtype, note = _faster_dtype()
    command = _command(str(PEERS[name]), "transformers_engine.py", folder, {"dtype": dtype})
    return Contender(name, command, {"OMP_NUM_THREADS": str(num_threads)}, note)


def _vllm(name: str, folder: Path, num_threads: int, scratch: Path) -> Contender:
    dtype, note = _faster_dtype()
    options = {"eager": name == "vllm", "block_size": 32, "dtype": dtype}
    environment = {
        "OMP_NUM_THREADS": str(num_threads),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(scratch / "vllm"),
    }
    command = _command(str(PEERS[name]), "vllm_engine.py", folder, options)
    return Contender(name, command, environment, note)


def _openvino(name: str, folder: Path, num_threads: int, scratch: Path) -> Contender:
    """Written and converted here, once, so that the conversion is no part of its start."""
    note, threads = "", num_threads
    if num_threads == 1 and "amx_bf16" in Path("/proc/cpuinfo").read_text():
        # oneDNN inside openvino 2026.4 divides by half the number of threads: one thread is a
        # division by zero in bfloat16 on CPUs with AMX (openvinotoolkit/openvino#33300).
        note, threads = "with 2 threads: it crashes with 1 on this CPU", 2
    path = scratch / "openvino" / "model.gguf"
    options = {"threads": threads, "cache_gb": KV_GIB}
    command = _command(str(PEERS[name]), "openvino_engine.py", path, options)
    contender = Contender(name, command, {"OMP_NUM_THREADS": str(threads)}, note)
    if not path.exists():
        export_gguf(folder, path)
        with Running(contender) as running:
            running.ask({"do": "run", "rounds": []})
    return contender


def _command(python: str, what: str, model: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    if what.endswith(".py"):
        script = (str(Path(__file__).parent / "peers" / what),)
    else:
        script = ("-m", what)
    # Not resolved: an environment's interpreter is a link, and its own path says which it is.
    return (os.path.abspath(python), *script, str(model), json.dumps(options))


class Running:
    """A contender's process, from its start to the end of a `with`."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (until __exit__)
        self._started_s = time.perf_counter()
        self._process = subprocess.Popen(
            contender.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **PASSIVE, **contender.environment},
        )

    @property
    def age_s(self) -> float:
        """Since the process was started."""
        return time.perf_counter() - self._started_s

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()  # no more commands: it ends by itself
            if kind is None:
                self._process.wait(timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self._process.kill()
        self._process.wait()
        self._log.close()

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """One command's answer. Raises InfraError, with the end of its log, if none comes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = threading.Timer(COMMAND_TIMEOUT_S, self._process.kill)
        deadline.start()
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            deadline.cancel()
        if not line:
            raise InfraError(f"{self.contender.name} {self._end()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        tail = "\n".join(self._log.read().splitlines()[-ERROR_LINES:])
        return f"ended with code {code} (or was stopped after {COMMAND_TIMEOUT_S:.0f} s):\n{tail}"
