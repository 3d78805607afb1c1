"""Building the kernels: on demand, once, and never a reason not to run.

Every test asks a process of its own, because a library that was loaded stays loaded.
"""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.policy.model.native import build

from .needs import needs_kernels

LOAD = """
import warnings
from practicum.policy.model.native import build
{before}
warnings.simplefilter("always")
print(build.load() is not None, build.load() is build.load())
"""
ANY_PROCESSOR = 'build.processor = lambda: "flags : avx2 fma"'


def command(before: str) -> list[str]:
    return [sys.executable, "-c", LOAD.format(before=before)]


FORK = """
import os, sys, torch
from practicum.policy.model.native import kernels
torch.set_num_threads(2)
x, weight = torch.ones(200, 512).bfloat16(), torch.ones(600, 512).bfloat16()
whole = kernels.linear(x, weight)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
torch.set_num_threads({threads})
again = kernels.linear(x, weight)
assert (again.numpy() == whole.numpy()).all()
"""


def load(before: str = "", **environment: str) -> tuple[str, str]:
    """What a fresh process says of its library, and what it complains of."""
    done = subprocess.run(
        command(before),
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip(), done.stderr


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_broken_compiler_is_one_warning_and_no_library(tmp_path: Path) -> None:
    broken = script(tmp_path / "cc", "echo 'no such instruction: tdpbf16ps' >&2; exit 1")
    loaded, complaint = load(ANY_PROCESSOR, CXX=broken, PRACTICUM_CACHE=str(tmp_path))
    assert loaded == "False True"
    assert complaint.count("could not be built") == 1
    assert "no such instruction: tdpbf16ps" in complaint
    assert "PRACTICUM_NATIVE=0" in complaint
    assert list((tmp_path / "native").iterdir()) == [], "no trace of the attempt stays"


def test_a_compiler_that_makes_no_library_is_one_warning(tmp_path: Path) -> None:
    wrong = script(tmp_path / "cc", 'for last; do :; done; while [ "$1" != -o ]; do shift; done\n'
                   'echo "not a library" > "$2"')  # fmt: skip
    loaded, complaint = load(ANY_PROCESSOR, CXX=wrong, PRACTICUM_CACHE=str(tmp_path))
    assert loaded == "False True"
    assert complaint.count("could not be built") == 1


def test_a_cache_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    loaded, complaint = load(
        ANY_PROCESSOR, CXX="true", PRACTICUM_CACHE=str(tmp_path / "file" / "below")
    )
    assert loaded == "False True"
    assert complaint.count("could not be built") == 1


def test_nothing_is_built_where_it_is_switched_off(tmp_path: Path) -> None:
    touching = script(tmp_path / "cc", f"touch {tmp_path}/called; exit 1")
    quiet = load(ANY_PROCESSOR, PRACTICUM_NATIVE="0", CXX=touching, PRACTICUM_CACHE=str(tmp_path))
    assert quiet == ("False True", "")
    assert not (tmp_path / "called").exists()


def test_a_wrong_choice_is_named_with_the_right_ones() -> None:
    told = "from practicum.policy.model.native import build; print(build.missing())"
    done = subprocess.run(
        [sys.executable, "-c", told],
        env=os.environ | {"PRACTICUM_NATIVE": "avx1024"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "PRACTICUM_NATIVE=avx1024 is none of auto, avx512, avx2, 0"


def test_a_wrong_choice_is_one_warning_and_an_empty_one_is_the_default() -> None:
    loaded, complaint = load(PRACTICUM_NATIVE="avx1024")
    assert loaded == "False True"
    assert complaint.count("avx1024 is none of auto, avx512, avx2, 0; going on without") == 1
    assert load(PRACTICUM_NATIVE="") == load(PRACTICUM_NATIVE="auto")


def test_a_machine_without_compiler_or_instructions_is_not_bothered(tmp_path: Path) -> None:
    old = 'build.processor = lambda: "flags : sse2 avx"'
    assert load(old, PRACTICUM_CACHE=str(tmp_path)) == ("False True", "")
    bare = {"CXX": "no-such-compiler", "PATH": str(tmp_path), "PRACTICUM_CACHE": str(tmp_path)}
    assert load(ANY_PROCESSOR, **bare) == ("False True", "")


@needs_kernels
@pytest.mark.slow
def test_two_processes_that_build_at_once_both_have_the_library(tmp_path: Path) -> None:
    # The compiler waits in between, until both processes have found no library and called it.
    slow = script(tmp_path / "cc", 'echo ready > "$GATE.ready"; read _ < "$GATE.go"\n'
                  'exec c++ "$@" -O0')  # fmt: skip
    cache = tmp_path / "cache"
    running: list[subprocess.Popen[str]] = []
    for name in ("one", "two"):
        os.mkfifo(tmp_path / f"{name}.ready")
        os.mkfifo(tmp_path / f"{name}.go")
        environment = {"CXX": slow, "GATE": str(tmp_path / name), "PRACTICUM_CACHE": str(cache)}
        running.append(
            subprocess.Popen(
                command(""), env=os.environ | environment, stdout=subprocess.PIPE, text=True
            )
        )
    try:
        for name in ("one", "two"):
            ready = os.open(tmp_path / f"{name}.ready", os.O_RDONLY | os.O_NONBLOCK)
            assert select.select([ready], [], [], 60)[0], f"{name} never called its compiler"
            os.close(ready)
        assert list((cache / "native").glob("*.so")) == []
        for name in ("one", "two"):
            (tmp_path / f"{name}.go").write_text("\n")
        assert [one.communicate(timeout=120)[0].strip() for one in running] == ["True True"] * 2
    finally:
        for one in running:
            one.kill()
            one.wait()
    left = list((cache / "native").iterdir())
    assert len(left) == 1, "one library in the chosen cache folder, and nothing half done"
    library = left[0].read_bytes()
    assert load("", CXX=slow, PRACTICUM_CACHE=str(cache))[0] == "True True", "it is not built again"
    assert left[0].read_bytes() == library


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("fewer", ["avx512", "avx2"])
def test_with_fewer_instructions_the_kernels_pass_the_same_tests(fewer: str) -> None:
    if fewer == "avx512" and "avx512_bf16" not in build.processor():
        pytest.skip("no AVX-512 here")
    here = Path(__file__).parent
    files = [str(here / f"test_{name}.py") for name in ("ops", "head", "coded_pages", "quantised")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-rs", *files],
        env=os.environ | {"PRACTICUM_NATIVE": fewer},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "SKIPPED" not in done.stdout


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_forked_child_computes_without_the_threads_of_its_parent_and_ends(threads: int) -> None:
    script = FORK.format(threads=threads)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
