"""Our engine as a contender of `practicum bench engine`.

Usage: python -m practicum.bench.ours_engine MODEL_FOLDER OPTIONS_JSON
OPTIONS_JSON: `precision` (bf16, fp32 or w8a8) and `kv_bytes`. Threads by OMP_NUM_THREADS;
PRACTICUM_NATIVE=0 leaves out our compiled kernels.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from practicum.bench.peers.engine_contender import Answer, claim_stdout, obey, player, say_absent
from practicum.startup import lasting

ANSWERS = claim_stdout() if __name__ == "__main__" else sys.stdout

with lasting():
    import torch

    from practicum.bench.rollout_workload import ROWS
    from practicum.policy.engine.engine import Engine, EngineOptions
    from practicum.policy.model.tokens import Tokens
    from practicum.policy.model.weights import load_transformer
    from practicum.sampling import Sampling

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def main() -> None:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    engine = open_engine(folder, **options)
    if engine is None:
        say_absent(ANSWERS, f"the engine has no precision {options['precision']!r} yet")
        return
    with asyncio.Runner() as runner:  # one event loop for all runs: an engine serves one

        def generate(
            prompts: list[list[int]], budgets: list[int], seeds: list[int]
        ) -> list[Answer]:
            return runner.run(complete(engine, prompts, budgets, seeds))

        obey(ANSWERS, player(generate), partial(publish_next, engine))
    engine.close()


def open_engine(folder: Path, *, precision: str, kv_bytes: int) -> Engine | None:
    """The engine in a precision; None if it does not offer it."""
    settings: dict[str, Any] = {"max_batch_rows": max(ROWS), "cache_bytes": kv_bytes}
    if precision not in DTYPES:
        if "precision" not in {field.name for field in fields(EngineOptions)}:
            return None
        settings["precision"] = precision
    model = load_transformer(folder, DTYPES.get(precision, torch.bfloat16))
    return Engine(model, Tokens(folder), name="ours", options=EngineOptions(**settings))


async def complete(
    engine: Engine, prompts: list[list[int]], budgets: list[int], seeds: list[int]
) -> list[Answer]:
    asked = zip(prompts, budgets, seeds, strict=True)
    completions = await asyncio.gather(
        *(
            engine.generate(prompt, Sampling(budget, temperature=1.0, seed=seed, ignore_eos=True))
            for prompt, budget, seed in asked
        )
    )
    return [Answer(list(c.token_ids), c.reused_tokens) for c in completions]


def publish_next(engine: Engine) -> None:
    """The trainer shares the weights in memory: saying that they are new is all there is to do."""
    with engine.lock:
        engine.publish(engine.version + 1)


if __name__ == "__main__":
    main()
