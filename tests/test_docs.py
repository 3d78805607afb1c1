"""The documentation's code is run, so that it cannot drift from the code."""

import re
import tomllib
from pathlib import Path

import pytest

from practicum.config import resolve

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["concepts.md", "engine.md", "guides/add-a-domain.md"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)  # noqa: S102 - our own documentation


def test_the_recipes_of_the_engine_guide_are_valid():
    page = (DOCS / "guides/choose-an-engine.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    kinds = [resolve(tomllib.loads(block), {}).engine.kind for block in blocks]
    assert kinds == ["own", "vllm-server"]


def test_the_readme_prints_the_loop_as_it_is():
    root = DOCS.parent
    assert (root / "src/practicum/loop.py").read_text() in (root / "README.md").read_text()


def test_the_loop_stays_below_a_hundred_lines():
    assert len((DOCS.parent / "src/practicum/loop.py").read_text().splitlines()) < 100
