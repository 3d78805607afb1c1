"""The frontier of low precision: how far an engine's distribution is from float32, for its speed.

Usage of the measuring process: python -m practicum.bench.engine_frontier MODEL_FOLDER PRECISION
The engine samples; transformers in float32 scores the same tokens; the mean of `exp(d) - 1 - d`
with `d = log p - log q` estimates KL(q || p) without bias and with little spread (Schulman 2020).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.bench import rollout_workload
from practicum.bench.engine_contenders import ERROR_LINES, OURS
from practicum.errors import InfraError

if TYPE_CHECKING:
    from practicum.bench.engine import Measured

NUM_SAMPLES = 32
KV_BYTES = 1 << 30


def measure_kl(folder: Path, measured: Sequence[Measured]) -> None:
    """Give each of our contenders that is not absent its KL."""
    for one in measured:
        if one.absent or one.name not in OURS:
            continue
        precision, environment = OURS[one.name]
        done = subprocess.run(
            [sys.executable, "-m", "practicum.bench.engine_frontier", str(folder), precision],
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        )
        if done.returncode:
            tail = "\n".join(done.stderr.splitlines()[-ERROR_LINES:])
            raise InfraError(f"the KL of {one.name} failed with code {done.returncode}:\n{tail}")
        one.kl = json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    import torch

    from practicum.bench.ours_engine import open_engine
    from practicum.sampling import Completion, Sampling

    folder, precision = Path(sys.argv[1]), sys.argv[2]
    engine = open_engine(folder, precision=precision, kv_bytes=KV_BYTES)
    assert engine is not None, f"no precision {precision}"
    asks = rollout_workload.rollout(engine.tokens, 0).rounds[0][::2][:NUM_SAMPLES]
    prompts = [(ask.first_id, *ask.append_ids[1:]) for ask in asks]

    async def sample() -> list[Completion]:
        return await asyncio.gather(
            *(
                engine.generate(
                    prompt, Sampling(ask.max_new_tokens, seed=ask.seed, ignore_eos=True)
                )
                for prompt, ask in zip(prompts, asks, strict=True)
            )
        )

    completions = asyncio.run(sample())
    engine.close()
    sampled = torch.tensor([lp for c in completions for lp in c.logprobs], dtype=torch.float64)
    exact = torch.cat(
        [_score(folder, p, c.token_ids) for p, c in zip(prompts, completions, strict=True)]
    )
    difference = exact - sampled
    terms = difference.exp() - 1 - difference
    result = {
        "kl": terms.mean().item(),
        "kl_error": (terms.std() / len(terms) ** 0.5).item(),
        "mean_difference": difference.abs().mean().item(),
        "num_tokens": float(len(terms)),
    }
    print(json.dumps(result))


_exact: dict[Path, Any] = {}


def _score(folder: Path, prompt: Sequence[int], token_ids: Sequence[int]) -> Any:
    """Log-probs of the sampled tokens by transformers in float32, as float64."""
    import torch
    from transformers import AutoModelForCausalLM

    if folder not in _exact:
        _exact[folder] = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportUnknownMemberType]
            str(folder), dtype=torch.float32, local_files_only=True
        ).eval()
    ids = torch.tensor([[*prompt, *token_ids]])
    with torch.inference_mode():
        logits = _exact[folder](ids[:, :-1]).logits[0, len(prompt) - 1 :]
    logprobs = logits.double().log_softmax(-1)
    return logprobs.gather(1, torch.tensor(token_ids)[:, None])[:, 0]


if __name__ == "__main__":
    main()
