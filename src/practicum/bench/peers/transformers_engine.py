"""transformers' `generate` as a contender of `practicum bench engine`.

Usage: python transformers_engine.py MODEL_FOLDER OPTIONS_JSON
OPTIONS_JSON: `dtype`. Threads by OMP_NUM_THREADS. One left-padded batch; a row stops at its own
budget but stays in the batch until the longest ends, which is how `generate` works. Nothing is kept
between calls.
"""

from __future__ import annotations

import json
import os
import sys

from engine_contender import Answer, claim_stdout, obey, player

ANSWERS = claim_stdout()

import torch  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

PADDING_ID = 0


class Budgets(StoppingCriteria):
    """Every row ends at its own length."""

    def __init__(self, lengths: torch.Tensor) -> None:
        self.lengths = lengths

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        return input_ids.shape[1] >= self.lengths


def main() -> None:
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, options["dtype"]), attn_implementation="sdpa"
    ).eval()
    model.generation_config.eos_token_id = None  # else it fills in for the None given below

    @torch.inference_mode()
    def generate(prompts: list[list[int]], budgets: list[int], seeds: list[int]) -> list[Answer]:
        torch.manual_seed(seeds[0])
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), PADDING_ID)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(budgets),
            pad_token_id=PADDING_ID,
            eos_token_id=None,
        )
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([Budgets(longest + torch.tensor(budgets))]),
        )
        drawn = output[:, longest:].tolist()
        return [Answer(row[:budget]) for row, budget in zip(drawn, budgets)]

    obey(ANSWERS, player(generate))


if __name__ == "__main__":
    main()
