"""The wire format is light: it serves any policy, so it must not bring one of its own."""

import subprocess
import sys


def test_the_endpoint_imports_neither_torch_nor_transformers():
    check = (
        "import sys, practicum.endpoint, practicum.testing.streaming; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
