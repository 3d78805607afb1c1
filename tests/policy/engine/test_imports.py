"""A process that runs, serves or trains a model never imports transformers, which takes seconds."""

import subprocess
import sys
from pathlib import Path

USE = """
import asyncio, sys
from pathlib import Path
import torch
from practicum.policy.engine import Engine
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer, save_transformer
from practicum.sampling import Sampling
from practicum.types import Message

folder = Path(sys.argv[1])
engine = Engine(load_transformer(folder, torch.float32), Tokens(folder), name="tiny")
prompt = engine.render([Message("user", "3+4=")])
completion = asyncio.run(engine.generate(prompt, Sampling(max_new_tokens=2)))
engine.close()
save_transformer(engine.model, Path(sys.argv[2]), source=folder)
assert len(completion.token_ids) > 0
"""

NEVER = "assert not {'transformers', 'torch._dynamo', 'sympy'} & sys.modules.keys()"


def run(script: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", script, *map(str, arguments)], check=True)


def test_a_model_is_loaded_run_and_saved_without_transformers(folder: Path, tmp_path: Path) -> None:
    run(USE + NEVER, folder, tmp_path / "saved")


def test_what_serves_and_what_trains_imports_no_transformers() -> None:
    modules = "practicum.serving, practicum.stages, practicum.policy.train.trainer"
    run(f"import sys, {modules}, practicum.policy.train.sft, practicum.parity\n{NEVER}")
