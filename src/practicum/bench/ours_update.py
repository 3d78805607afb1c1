"""Our GRPO updates on the work of `bench/workload.py`; the counterpart of `peers/trl_update.py`.

Usage: python -m practicum.bench.ours_update MODEL_FOLDER WORK_JSON DTYPE NUM_STEPS NUM_THREADS
Prints one JSON object as its last line.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from practicum.config import TrainConfig
from practicum.policy.engine.engine import Engine
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.policy.train.trainer import RLTrainer
from practicum.sampling import Sampling
from practicum.types import Message, Outcome, Segment, Trajectory
from practicum.verdicts import Verdict, VerifierId

VERIFIER = VerifierId(name="exact", version="1", digest="")


def main() -> None:
    folder, work_file, dtype, num_steps, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    work: dict[str, Any] = json.loads(Path(work_file).read_text())
    tokens = Tokens(Path(folder))
    model = load_transformer(Path(folder), getattr(torch, dtype))
    policy = Engine(model, tokens, name="ours")
    trainer = RLTrainer(
        model,
        TrainConfig(
            algorithm="grpo",
            learning_rate=work["learning_rate"],
            warmup_steps=0,
            beta2=0.999,  # TRL's default, for the like of likeness
        ),
        temperature=1.0,
        max_response_tokens=work["max_new_tokens"],
    )
    per_step = work["num_prompts"]
    seconds: list[float] = []
    phases: list[dict[str, float]] = []
    rewards: list[float] = []
    lengths: list[float] = []
    for step in range(int(num_steps)):
        questions = work["questions"][step * per_step : (step + 1) * per_step]
        started = time.perf_counter()
        trajectories = asyncio.run(roll_out(policy, questions, work, step))
        rolled_out = time.perf_counter()
        verdicts = {
            trajectory.id: verdict(trajectory, questions[int(trajectory.group_id)]["answer"])
            for trajectory in trajectories
        }
        metrics = trainer.update(policy, None, trajectories, verdicts)
        ended = time.perf_counter()
        seconds.append(ended - started)
        phases.append(
            {"rollout_s": rolled_out - started, "train_s": ended - rolled_out}
            | {k.removeprefix("time/"): v for k, v in metrics.items() if k.startswith("time/")}
        )
        rewards.append(sum(v.score for v in verdicts.values()) / len(verdicts))
        lengths.append(sum(t.num_trainable for t in trajectories) / len(trajectories))
    result = {
        "seconds": seconds,
        "phases": phases,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "rewards": rewards,
        "mean_length": lengths,
    }
    print(json.dumps(result))


async def roll_out(
    policy: Engine, questions: list[dict[str, str]], work: dict[str, Any], step: int
) -> list[Trajectory]:
    """`group_size` samples of every question, all at once."""

    async def one(index: int, sample: int) -> Trajectory:
        prompt = Message("text", questions[index]["prompt"])
        prompt_ids = policy.render((prompt,))
        seed = (step * work["num_prompts"] + index) * work["group_size"] + sample
        sampling = Sampling(work["max_new_tokens"], temperature=1.0, stop=("\n",), seed=seed)
        completion = await policy.generate(prompt_ids, sampling)
        return Trajectory(
            id=f"{index}-{sample}",
            group_id=str(index),
            task_id=str(index),
            sample=sample,
            messages=(prompt, Message("assistant", completion.text)),
            segments=(
                Segment.of(
                    prompt_ids, completion.token_ids, completion.logprobs, completion.versions
                ),
            ),
            stop_reason=completion.stop_reason,
            outcome=Outcome.SCORED,
        )

    return await asyncio.gather(
        *(one(i, s) for i in range(len(questions)) for s in range(work["group_size"]))
    )


def verdict(trajectory: Trajectory, answer: str) -> Verdict:
    return Verdict(score=float(trajectory.response.strip() == answer), verifier=VERIFIER)


if __name__ == "__main__":
    main()
