"""What `practicum bench long` runs: long prompts through a `Runner`, without a scheduler.

The one thing to know: times are seconds of the processor as well as of the clock; on a machine that
others use too, only the former mean something. Text is the reference manual that comes with Python,
which every installation has.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from array import array
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, cast

import torch
from torch import Tensor

from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.pages import num_pages
from practicum.policy.engine.runner import Runner
from practicum.policy.engine.sequence import Sequence
from practicum.policy.engine.step import Run, Step
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer

CHUNK = 512
"""Prompt tokens of a step."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What some work took."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    """Of the whole process so far"""


def manual() -> str:
    """Some 450 kB of English prose and code."""
    return "\n\n".join(text for _, text in sorted(topics.items()))


def extended(folder: Path, factor: float) -> Transformer:
    """A model whose rotary tables are stretched by YaRN to `factor` times its context."""
    config = cast(dict[str, Any], json.loads((folder / "config.json").read_text()))
    original = int(config["max_position_embeddings"])
    theta = config.pop("rope_theta", None) or config["rope_parameters"]["rope_theta"]
    config.pop("rope_scaling", None)
    config["rope_parameters"] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "rope_theta": theta,
    }
    config["max_position_embeddings"] = int(original * factor)
    with tempfile.TemporaryDirectory(prefix="practicum-long-") as scratch:
        for file in folder.iterdir():
            if file.name != "config.json":
                (Path(scratch) / file.name).symlink_to(file.resolve())
        (Path(scratch) / "config.json").write_text(json.dumps(config))
        return load_transformer(Path(scratch), torch.bfloat16)


class Reader:
    """One sequence under way in a runner of its own."""

    def __init__(
        self, model: Transformer, policy: KvPolicy, num_tokens: int, swap: Path | None = None
    ) -> None:
        total = num_pages(num_tokens)
        exact = num_pages(policy.recent + 256 + CHUNK) + 2
        self.runner = Runner(model, total, swap, policy, exact)
        self.sequence = Sequence([], 0, array("i"), array("i", range(total)))

    def read(self, token_ids: list[int], first: int = 0, *, num_logits: int = 1) -> Tensor:
        """Compute tokens from position `first` on; hidden states [num_logits, D] after the last."""
        sequence = self.sequence
        del sequence.tokens[first:]
        sequence.tokens.extend(token_ids)
        end, states = first + len(token_ids), list[Tensor]()
        with torch.inference_mode():
            for start in range(first, end, CHUNK):
                count = min(CHUNK, end - start)
                wanted = max(0, min(count, start + count - (end - num_logits)))
                run = Run(sequence, start, count, (), wanted)
                states.append(self.runner.run(Step(runs=[run])))
        return torch.cat(states)


@contextmanager
def measured(into: list[Spent]) -> Generator[None]:
    """Append what the body took."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    into.append(Spent(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def random_tokens(count: int, vocab_size: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(vocab_size), k=count)


def fill_pages(runner: Runner, num_tokens: int, seed: int = 0) -> None:
    """Pretend that so many tokens were computed: random keys and values, equal in all layers."""
    store, generator = runner.store, torch.Generator().manual_seed(seed)
    count = num_pages(num_tokens)
    for start in range(0, count, 256):
        some = range(start, min(start + 256, count))
        shape = (len(some), *store.exact.shape[2:])
        pages = torch.randn(shape, generator=generator).to(store.exact.dtype)
        store.fill(some, pages)
