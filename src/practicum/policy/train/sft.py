"""Supervised fine-tuning: imitate worked answers, with the layout and optimizer of the RL trainer.

The one thing to know: the loss is the mean of -log pi over the response tokens of the batch, one
global token count as denominator; prompts are fed and never trained on. The model is changed in
place, so this belongs before the first rollout, while no engine runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from practicum.config import SftConfig
from practicum.errors import UsageError
from practicum.policy.model.transformer import Transformer
from practicum.policy.train.aggregation import Totals, token_mean
from practicum.policy.train.batch import Attempt, Batch, assemble, micro_batches
from practicum.policy.train.masters import Masters
from practicum.policy.train.optim import AdamW, Schedule
from practicum.policy.train.passes import run_pass
from practicum.protocols import Metrics
from practicum.types import Segment

WARMUP_SHARE = 0.1
"""Of all steps."""


@dataclass(frozen=True, slots=True)
class SftExample:
    """One worked answer in tokens.

    Example:
        SftExample(prompt_ids=(19, 26, 18, 38), response_ids=(23, 198)) for "3+4=" and "7\\n"
    """

    prompt_ids: tuple[int, ...]
    """Read, not trained on; at least the start-of-sequence token."""
    response_ids: tuple[int, ...]
    """Every one is a target, the end of turn included if it is there."""


def train_sft(
    model: Transformer,
    examples: Sequence[SftExample],
    config: SftConfig,
    *,
    seed: int,
    micro_batch_tokens: int = 4096,
) -> Iterator[Metrics]:
    """Train step by step, yielding each step's numbers; nothing happens until they are asked for.

    Examples are drawn without replacement and reshuffled once all were seen. The same seed gives
    the same weights. Raises UsageError for an example that cannot be trained on.
    """
    _check(examples, model.shape.context_length)
    masters = Masters(model)
    warmup = max(1, round(WARMUP_SHARE * config.steps))
    optimizer = AdamW(masters, Schedule(config.learning_rate, warmup_updates=warmup))
    order = _shuffled(len(examples), random.Random(seed))
    for _ in range(config.steps):
        batch = sft_batch([examples[next(order)] for _ in range(config.batch_size)])
        work = micro_batches(batch, micro_batch_tokens)

        def negative_log_likelihood(logprobs_M: Tensor, columns_M: Tensor) -> Tensor:
            return -(logprobs_M * batch.weights[columns_M]).sum()  # noqa: B023 - used in this step only

        seen = run_pass(model, masters, batch, work, 1.0, negative_log_likelihood)
        update = optimizer.step() if seen.finite else None
        applied = update is not None and update.applied
        if applied:
            masters.publish()
        yield {
            "sft/loss": seen.loss,
            "sft/entropy": seen.entropy,
            "sft/grad_norm": update.grad_norm if update else 0.0,
            "sft/learning_rate": update.learning_rate if update else 0.0,
            "sft/tokens": float(len(batch)),
            "sft/skipped": float(not applied),
            "time/forward_s": seen.forward_s,
            "time/backward_s": seen.backward_s,
        }


def sft_batch(examples: Sequence[SftExample]) -> Batch:
    """Every response token with the same weight, 1 / all response tokens."""
    num_tokens = sum(len(example.response_ids) for example in examples)
    weight = token_mean(0, Totals(len(examples), num_tokens, max_response_tokens=1))
    return assemble([[Attempt((_segment(example),), 0.0, weight)] for example in examples])


def _segment(example: SftExample) -> Segment:
    nothing = [0] * len(example.response_ids)
    return Segment.of(example.prompt_ids, example.response_ids, nothing, nothing)


def _shuffled(count: int, generator: random.Random) -> Iterator[int]:
    while True:
        yield from generator.sample(range(count), count)


def _check(examples: Sequence[SftExample], context_length: int) -> None:
    if not examples:
        raise UsageError("there are no examples to train on")
    for index, example in enumerate(examples):
        length = len(example.prompt_ids) + len(example.response_ids)
        if not example.prompt_ids or not example.response_ids:
            raise UsageError(f"example {index} needs at least one prompt and one response token")
        if length > context_length:
            raise UsageError(
                f"example {index} has {length} tokens, more than the model's {context_length}; "
                "shorten it or leave it out"
            )
