"""The trainer: scored trajectories in, new weights out, one published version a step.

The one thing to know: the trainer and the policy's engine share one model. The first forward and
backward pass only reads it and may run beside the engine; from the first optimizer step to the
publication the trainer holds the policy's lock, so no token is ever sampled from weights that are
neither the old version nor the new one.

What is left out: a KL term (`reference` must be None) and importance weights between behaviour and
proximal policy. With `max_staleness = 0` and an exact engine the two agree up to rounding; what any
other engine samples is trained on as if they did. The metrics say how well they do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from practicum.config import TrainConfig
from practicum.errors import UsageError
from practicum.policy.model.transformer import Transformer
from practicum.policy.train import checkpoint
from practicum.policy.train.algorithms import ALGORITHMS
from practicum.policy.train.batch import Batch, MicroBatch, assemble, micro_batches
from practicum.policy.train.groups import score
from practicum.policy.train.losses import Clip
from practicum.policy.train.masters import Masters, digest
from practicum.policy.train.optim import AdamW, Schedule
from practicum.policy.train.report import Round, step_metrics
from practicum.policy.train.surrogate import PolicyPass, run_policy_pass
from practicum.protocols import Metrics, Policy
from practicum.types import Trajectory, WeightVersion
from practicum.verdicts import Verdict


@runtime_checkable
class Publisher(Protocol):
    """What a policy needs beyond `Policy` to be trained: it runs the model the trainer changes."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while weights change; the engine holds it while it computes one step of tokens."""
        ...

    def publish(self, version: WeightVersion) -> None:
        """The weights are now those of `version`. Called while `lock` is held."""
        ...


class RLTrainer:
    """Group-relative policy optimisation (GRPO, Dr. GRPO). Satisfies `protocols.Trainer`.

    Example:
        trainer = RLTrainer(model, TrainConfig(), temperature=1.0, max_response_tokens=16)
        metrics = trainer.update(policy, None, trajectories, verdicts)
    """

    def __init__(
        self,
        model: Transformer,
        config: TrainConfig,
        *,
        temperature: float,
        max_response_tokens: int,
    ) -> None:
        """`temperature` is that of sampling: log-probs of trainer and engine mean the same.

        `max_response_tokens` is the constant length of Dr. GRPO, usually the largest
        `max_new_tokens` of the run. It scales the gradient and caps nothing.
        """
        assert temperature > 0, "greedy samples of a group are equal and teach nothing"
        assert max_response_tokens >= 1
        self.model = model
        """What is trained. A policy runs it, or a copy of it."""
        self._config = config
        self._algorithm = ALGORITHMS[config.algorithm]
        self._clip = Clip(config.clip_low, config.clip_high)
        self._temperature = temperature
        self._max_response_tokens = max_response_tokens
        self._masters = Masters(model)
        self._optimizer = AdamW(self._masters, schedule_of(config))
        self._version = WeightVersion(0)

    @property
    def version(self) -> WeightVersion:
        return self._version

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The masters by parameter name: what to export and to compare."""
        return self._masters.weights

    def digest(self) -> str:
        """SHA-256 of the masters: equal for two runs exactly if their weights are."""
        return digest(self._masters.weights)

    def save(self, folder: Path) -> None:
        checkpoint.save(folder, self._masters, self._optimizer, self._version)

    def load(self, folder: Path) -> None:
        """Continue where `save` left off.

        The engine must be idle, and is to be told the version afterwards (`policy.publish`).
        """
        self._version = WeightVersion(checkpoint.load(folder, self._masters, self._optimizer))
        self._masters.publish()

    def update(
        self,
        policy: Policy,
        reference: Policy | None,
        trajectories: Sequence[Trajectory],
        rewards: Mapping[str, Verdict],
    ) -> Metrics:
        """One step. Raises UsageError for a reference, or a policy that takes no new weights."""
        if reference is not None:
            raise UsageError("KL to a reference is not supported yet: pass None as the reference")
        if not isinstance(policy, Publisher):
            raise UsageError(
                f"{policy.name} cannot be trained: it takes no new weights; train an `Engine` that "
                "runs the trainer's model, or a `Mirror` of it"
            )
        assert policy.version == self._version, (
            f"the policy runs version {policy.version}, the trainer holds {self._version}"
        )
        scored = score(trajectories, rewards, self._algorithm, self._max_response_tokens)
        batch = assemble(scored.groups)
        work = micro_batches(batch, self._config.micro_batch_tokens)
        first = self._pass(batch, work, proximal=None) if work else None
        with policy.lock:
            rounds = self._rounds(first, batch, work) if first else []
            trained = self._version
            self._version = WeightVersion(trained + 1)
            policy.publish(self._version)
        next_rate = self._optimizer.schedule.rate(self._optimizer.num_updates)
        return step_metrics(scored, batch, work, rounds, trained, next_rate)

    def _pass(
        self, batch: Batch, work: Sequence[MicroBatch], proximal: Tensor | None
    ) -> PolicyPass:
        return run_policy_pass(
            self.model,
            self._masters,
            batch,
            work,
            temperature=self._temperature,
            algorithm=self._algorithm,
            clip=self._clip,
            proximal=proximal,
        )

    def _rounds(self, first: PolicyPass, batch: Batch, work: Sequence[MicroBatch]) -> list[Round]:
        """All optimizer steps on one batch, each after a pass; the first pass is given."""
        rounds = [self._step(first)]
        while rounds[-1].skipped is None and len(rounds) < self._config.updates_per_step:
            rounds.append(self._step(self._pass(batch, work, first.base.logprobs)))
        return rounds

    def _step(self, seen: PolicyPass) -> Round:
        """Move the masters by the gradients of a pass, and the working weights with them."""
        began = time.perf_counter()
        update = self._optimizer.step() if seen.base.finite else None
        if update is not None and update.applied:
            self._masters.publish()
        return Round(seen, update, time.perf_counter() - began)


def schedule_of(config: TrainConfig) -> Schedule:
    return Schedule(
        learning_rate=config.learning_rate,
        warmup_updates=config.warmup_steps * config.updates_per_step,
        total_updates=config.steps * config.updates_per_step,
        decay_to=config.decay_to,
        beta1=config.beta1,
        beta2=config.beta2,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
    )
