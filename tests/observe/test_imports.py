"""Reading a run needs no model: neither torch nor transformers is ever imported."""

from __future__ import annotations

import subprocess
import sys

_PROBE = """
import importlib, pkgutil, sys
import practicum.observe, practicum.statistics
for package in (practicum.observe, practicum.statistics):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(sorted({"torch", "transformers", "pyarrow"} & set(sys.modules)))
"""


def test_nothing_heavy_is_imported() -> None:
    """pyarrow too is loaded only once a segment is read or written."""
    found = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
