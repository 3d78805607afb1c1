"""The work of one GRPO update, the same for every contender: few-shot sorting of three digits.

8 prompts of 67 tokens (SmolLM2's tokenizer) x 8 samples, at most 10 new tokens, a newline ends the
answer, temperature 1. Plain data, so that a peer in another environment reads it from JSON.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NUM_PROMPTS = 8
GROUP_SIZE = 8
MAX_NEW_TOKENS = 10
LEARNING_RATE = 1e-5


@dataclass(frozen=True, slots=True)
class Question:
    prompt: str
    answer: str


def questions(num_steps: int, seed: int = 0) -> list[Question]:
    """`NUM_PROMPTS` questions for each step."""
    shots = random.Random(7)
    preamble = "".join(f"{text}{answer}\n" for text, answer in (_draw(shots) for _ in range(4)))
    rng = random.Random(seed)
    drawn = [_draw(rng) for _ in range(num_steps * NUM_PROMPTS)]
    return [Question(preamble + text, answer.strip()) for text, answer in drawn]


def _draw(rng: random.Random) -> tuple[str, str]:
    digits = rng.sample(range(1, 10), 3)
    asked = " ".join(map(str, digits))
    return f"sort {asked} ->", " " + " ".join(map(str, sorted(digits)))
