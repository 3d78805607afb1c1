"""vLLM's CPU build as a contender of `practicum bench engine`, in its own environment.

Usage: python vllm_engine.py MODEL_FOLDER OPTIONS_JSON
OPTIONS_JSON: `dtype`, `eager` (no torch.compile), `block_size` (tokens of a page). Threads and KV
bytes by OMP_NUM_THREADS and VLLM_CPU_KVCACHE_SPACE; the engine runs in this process.
"""

from __future__ import annotations

import json
import sys

from engine_contender import Answer, claim_stdout, obey, player

ANSWERS = claim_stdout()

from safetensors.torch import load_file  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402


def main() -> None:
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(
        model=folder,
        dtype=options["dtype"],
        max_model_len=4096,
        max_num_seqs=256,
        enforce_eager=options["eager"],
        block_size=options["block_size"],
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]], budgets: list[int], seeds: list[int]) -> list[Answer]:
        del seeds  # per-request seeds make vLLM sample row by row: it is faster without
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [
                SamplingParams(
                    temperature=1.0,
                    top_p=1.0,
                    top_k=-1,
                    max_tokens=budget,
                    ignore_eos=True,
                    detokenize=False,
                )
                for budget in budgets
            ],
            use_tqdm=False,
        )
        return [
            Answer(list(output.outputs[0].token_ids), output.num_cached_tokens or 0)
            for output in outputs
        ]

    trained = None

    def update() -> None:
        """Weights of a trainer in this process, by name."""
        nonlocal trained
        if trained is None:
            trained = load_file(f"{folder}/model.safetensors")
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(trained.items())})
        llm.reset_prefix_cache()

    obey(ANSWERS, player(generate), update)


if __name__ == "__main__":
    main()
