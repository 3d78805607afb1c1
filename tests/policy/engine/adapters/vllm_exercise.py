"""What a vLLM policy is put through, in this process by HTTP, or run as a script in vLLM's own.

As a script: `python vllm_exercise.py MODEL NEW_MODEL`, which prints what was observed as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from practicum.errors import UsageError
from practicum.policy.engine.adapters.remote import RemotePolicy
from practicum.policy.engine.adapters.vllm_process import VllmPolicy
from practicum.sampling import Completion, Constraint, Sampling

PROMPTS = (
    "The capital of France is",
    "max(12,45,78)=78\nmax(55,23,41)=55\nmax(10,99,53)=",
    "def add(a, b):\n    return",
)
GREEDY = Sampling(16, temperature=0.0)
COOL = Sampling(32, temperature=0.8, seed=5, ignore_eos=True)
LONG = Sampling(120, seed=1, ignore_eos=True)


async def exercise(policy: RemotePolicy, new_folder: Path) -> dict[str, Any]:
    prompts = [policy.tokens.encode(prompt) for prompt in PROMPTS]

    async def all_of(sampling: Sampling) -> list[dict[str, Any]]:
        done = await asyncio.gather(*(policy.generate(prompt, sampling) for prompt in prompts))
        return [plain(completion) for completion in done]

    seen: dict[str, Any] = {"greedy": await all_of(GREEDY), "cool": await all_of(COOL)}
    seen["cool alone"] = plain(await policy.generate(prompts[0], COOL))
    seen["top"] = plain(await policy.generate(prompts[0], Sampling(2, seed=3, top_logprobs=4)))
    stop = Sampling(24, temperature=0.0, stop=("answer",))
    seen["stop"] = plain(await policy.generate(prompts[0], stop))
    choice = Sampling(12, temperature=0.0, constraint=Constraint("choice", '["Lyon", "Rome"]'))
    seen["choice"] = plain(await policy.generate(prompts[0], choice))
    try:
        await policy.generate(prompts[0], Sampling(2, presence_penalty=5.0))
    except UsageError as error:
        seen["refusal"] = str(error)
    under_way = [asyncio.create_task(policy.generate(prompt, LONG)) for prompt in prompts]
    await policy.generate(prompts[0], Sampling(8, ignore_eos=True))  # they are in its batches
    await policy.update_weights(new_folder, 1)
    seen["under way"] = [plain(await task) for task in under_way]
    seen["new cool"] = await all_of(COOL)
    return seen


def plain(completion: Completion) -> dict[str, Any]:
    return {
        "token_ids": list(completion.token_ids),
        "logprobs": list(completion.logprobs),
        "versions": list(completion.versions),
        "text": completion.text,
        "stop_reason": str(completion.stop_reason),
        "top_logprobs": [[list(pair) for pair in row] for row in completion.top_logprobs],
    }


async def _in_this_process(folder: Path, new_folder: Path) -> dict[str, Any]:
    options = {"max_model_len": 512, "max_num_seqs": 8, "enforce_eager": True, "dtype": "bfloat16"}
    policy = await VllmPolicy.start(folder, options=options)
    try:
        return await exercise(policy, new_folder)
    finally:
        await policy.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_in_this_process(Path(sys.argv[1]), Path(sys.argv[2])))))
