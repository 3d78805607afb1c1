"""openvino-genai's continuous batching as a contender of `practicum bench engine`.

Usage: python openvino_engine.py GGUF_PATH OPTIONS_JSON
OPTIONS_JSON: `threads`, `cache_gb`. The first start converts the GGUF into OpenVINO's own format,
which stays beside it. Keys and values are kept in 8 bits, which is its default.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from engine_contender import Answer, claim_stdout, obey, player

ANSWERS = claim_stdout()

import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

EVERY_TOKEN = 2**31


def main() -> None:
    path, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if not (path.parent / "openvino_model.xml").exists():
        genai.LLMPipeline(str(path), "CPU", enable_save_ov_model=True)
    pipeline = open_pipeline(path.parent, options)

    def generate(prompts: list[list[int]], budgets: list[int], seeds: list[int]) -> list[Answer]:
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = pipeline.generate(inputs, list(map(sampling, budgets, seeds)))
        return [Answer(list(result.m_generation_ids[0])) for result in results]

    def update() -> None:
        """Weights are constants of the compiled graph: a new pipeline is the only way."""
        nonlocal pipeline
        pipeline = open_pipeline(path.parent, options)

    obey(ANSWERS, player(generate), update)


def open_pipeline(folder: Path, options: dict[str, Any]) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = options["cache_gb"]
    scheduler.max_num_seqs = 256
    scheduler.max_num_batched_tokens = 512
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    properties = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "INFERENCE_NUM_THREADS": options["threads"],
        "NUM_STREAMS": 1,
    }
    return genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties, {})


def sampling(budget: int, seed: int) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = budget
    config.do_sample = True
    config.temperature = 1.0
    config.top_p = 1.0
    config.top_k = EVERY_TOKEN
    config.ignore_eos = True
    config.rng_seed = seed
    return config


if __name__ == "__main__":
    main()
