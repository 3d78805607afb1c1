"""TRL's GRPOTrainer on the work of `bench/workload.py`, in its own environment.

Usage: python trl_update.py MODEL_FOLDER WORK_JSON DTYPE NUM_STEPS NUM_THREADS
Prints one JSON object as its last line: seconds per step, seconds of each step, peak memory.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MICRO_BATCH = 16  # 64 sequences in one micro-batch need more than 9 GB in float32


class Clock(TrainerCallback):
    """Wall time of each optimizer step."""

    def __init__(self) -> None:
        self.marks = [time.perf_counter()]

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.marks.append(time.perf_counter())


def main() -> None:
    folder, work_file, dtype, num_steps, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    with open(work_file) as file:
        work = json.load(file)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    newline = tokenizer("\n", add_special_tokens=False)["input_ids"][0]
    tokenizer.padding_side = "left"
    tokenizer.eos_token = "\n"  # TRL looks for the end in three places; all of them must agree
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = newline

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [
            float(text.split("\n")[0].strip() == right) for text, right in zip(completions, answer)
        ]

    clock = Clock()
    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(
                output_dir=output,
                per_device_train_batch_size=MICRO_BATCH,
                gradient_accumulation_steps=work["num_prompts"] * work["group_size"] // MICRO_BATCH,
                num_generations=work["group_size"],
                max_completion_length=work["max_new_tokens"],
                max_steps=int(num_steps),
                learning_rate=work["learning_rate"],
                lr_scheduler_type="constant",
                temperature=1.0,
                beta=0.0,
                bf16=False,
                use_cpu=True,
                gradient_checkpointing=False,
                generation_kwargs={"eos_token_id": newline, "pad_token_id": 0},
                report_to=[],
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(work["questions"]),
            reward_funcs=reward,
            processing_class=tokenizer,
            callbacks=[clock],
        )
        clock.marks = [time.perf_counter()]
        trainer.train()
    seconds = [end - start for start, end in zip(clock.marks, clock.marks[1:])]
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    result = {
        "seconds": seconds,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "rewards": [entry["reward"] for entry in history],
        "mean_length": [entry.get("completions/mean_length") for entry in history],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
