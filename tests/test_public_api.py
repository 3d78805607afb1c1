import subprocess
import sys

import pytest

import practicum


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after the statement."""
    code = f"import sys; {statement}; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


@pytest.mark.parametrize("name", practicum.__all__)
def test_every_promised_name_is_there(name: str):
    assert getattr(practicum, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Trainr"):
        practicum.Trainr  # noqa: B018


def test_importing_practicum_loads_nothing_heavy():
    assert not {"torch", "transformers", "numpy", "pyarrow"} & loaded_after("import practicum")


def test_the_environment_side_never_loads_torch():
    side = "environment.evals.run, practicum.environment.qc.solvability, practicum.loop"
    imports = f"import practicum.{side}, practicum.environment.sandbox, practicum.observe.html"
    assert not {"torch", "transformers"} & loaded_after(imports)


def test_help_loads_no_torch():
    call = "from practicum.cli import app; app(['--help'], result_action='return_value')"
    assert not {"torch", "transformers", "numpy"} & loaded_after(call)
