"""The trainer: one step, one publication, and nothing moves that should not."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest
import torch

from practicum.config import TrainConfig
from practicum.errors import UsageError
from practicum.policy.model.forest import plant
from practicum.policy.model.transformer import Transformer
from practicum.policy.train.masters import digest
from practicum.policy.train.recompute import hidden_states
from practicum.policy.train.trainer import RLTrainer
from practicum.protocols import Policy, Trainer
from practicum.types import Segment, WeightVersion

from .models import L_MAX, LocalPolicy, random_step, small_model, trajectory, verdict

REWARDS = [[1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]]
CONFIG = TrainConfig(learning_rate=0.01, warmup_steps=0)


def make(model: Transformer, config: TrainConfig = CONFIG, updates_per_step: int = 1) -> RLTrainer:
    config = config.model_copy(update={"updates_per_step": updates_per_step})
    return RLTrainer(
        model,
        config,
        temperature=1.0,
        max_response_tokens=L_MAX,
    )


def logits(model: Transformer) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(hidden_states(model, plant([[1, 2, 3]])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_step_changes_the_weights_that_run_and_publishes_once(dtype: torch.dtype) -> None:
    model, policy = small_model(0, dtype), LocalPolicy()
    trainer: Trainer = make(model)
    before = logits(model)
    metrics = trainer.update(policy, None, *random_step(0, REWARDS))
    assert not torch.equal(logits(model), before)
    assert policy.published == [1]
    assert trainer.version == 1
    assert metrics["train/updates"] == 1
    assert metrics["train/grad_norm"] > 0
    assert metrics["train/groups"] == 2
    assert metrics["train/groups_without_signal"] == 1


def test_on_policy_the_ratio_is_exactly_one_and_nothing_is_clipped() -> None:
    metrics = make(small_model(0, torch.bfloat16)).update(
        LocalPolicy(), None, *random_step(0, REWARDS)
    )
    assert metrics["train/ratio_max"] == 1.0
    assert metrics["train/clip_share"] == 0.0


def test_more_updates_of_one_step_leave_the_proximal_policy_and_are_clipped() -> None:
    policy, step = LocalPolicy(), random_step(0, REWARDS)
    metrics = make(small_model(), updates_per_step=4).update(policy, None, *step)
    assert metrics["train/updates"] == 4
    assert metrics["train/ratio_max"] > 1.28
    assert metrics["train/clip_share"] > 0
    assert policy.published == [1]


def test_without_a_learning_rate_weights_and_probabilities_stay() -> None:
    model = small_model(0, torch.bfloat16)
    trainer = make(model, TrainConfig(learning_rate=0.0))
    before, known = trainer.digest(), logits(model)
    trainer.update(LocalPolicy(), None, *random_step(0, REWARDS))
    assert trainer.digest() == before
    assert torch.equal(logits(model), known)


def test_a_step_without_signal_moves_nothing_but_the_version() -> None:
    """Not even by the momentum of the step before."""
    trainer, policy = make(small_model(0, torch.bfloat16)), LocalPolicy()
    first = trainer.update(policy, None, *random_step(0, REWARDS))
    before = trainer.digest()
    second = trainer.update(policy, None, *random_step(1, [[1.0, 1.0], [0.0, 0.0]]))
    third = trainer.update(policy, None, [], {})
    assert trainer.digest() == before
    assert policy.published == [1, 2, 3]
    assert second["train/groups_without_signal"] == 2
    assert first.keys() == second.keys() == third.keys()
    assert all(math.isfinite(number) for number in [*second.values(), *third.values()])


def test_a_loss_that_is_not_finite_skips_the_step_by_name() -> None:
    model = small_model(0, torch.bfloat16)
    trainer, policy = make(model), LocalPolicy()
    with torch.no_grad():
        model.embedding[2, 0] = math.nan  # answers use the tokens 0, 1 and 2
    before = trainer.digest()
    metrics = trainer.update(policy, None, *random_step(0, REWARDS))
    assert (metrics["train/skipped"], metrics["train/skipped_by_loss"]) == (1.0, 1.0)
    assert metrics["train/skipped_by_gradient"] == 0.0
    assert metrics["train/updates"] == 0.0
    assert trainer.digest() == before
    assert policy.published == [1]


def test_nothing_of_a_skipped_step_is_left_in_the_next() -> None:
    """The first micro-batch had collected its gradient before the second one was not finite."""
    config = CONFIG.model_copy(update={"micro_batch_tokens": 5})
    model, policy = small_model(0, torch.bfloat16, tied=False), LocalPolicy()
    fresh = make(small_model(0, torch.bfloat16, tied=False), config)
    trainer = make(model, config)
    answers = [
        Segment.of([first, 9], [3, last], [-1, -1], [0, 0]) for first in (1, 50) for last in (4, 5)
    ]
    trajectories = [trajectory(i // 2, i % 2, [answer]) for i, answer in enumerate(answers)]
    verdicts = {t.id: verdict(t.sample) for t in trajectories}
    kept = model.embedding.detach()[50].clone()
    model.embedding.data[50] = math.nan  # the prompt of the second group only
    metrics = trainer.update(policy, None, trajectories, verdicts)
    assert metrics["train/micro_batches"] == 1 + metrics["train/skipped_by_loss"] == 2
    model.embedding.data[50] = kept
    trainer.update(policy, None, trajectories[2:], verdicts)
    fresh.update(LocalPolicy(), None, trajectories[2:], verdicts)
    assert trainer.digest() == fresh.digest()


def test_a_gradient_that_is_not_finite_skips_the_step_by_name() -> None:
    model = small_model(0, torch.float32)
    trainer, policy = make(model), LocalPolicy()
    handle = model.norm.register_hook(lambda gradient: gradient * math.inf)
    before = trainer.digest()
    metrics = trainer.update(policy, None, *random_step(0, REWARDS))
    assert metrics["train/skipped_by_gradient"] == 1.0
    assert trainer.digest() == before
    handle.remove()
    assert trainer.update(policy, None, *random_step(0, REWARDS))["train/updates"] == 1.0
    assert trainer.digest() != before


def test_weights_change_and_are_published_only_under_the_lock() -> None:
    model = small_model(0, torch.bfloat16)

    class Watching(LocalPolicy):
        """Notes the weights when the lock is taken and when the version is published."""

        seen: dict[str, str]

        @contextmanager
        def guarded(self) -> Iterator[None]:
            self.seen = {"locked": self.digest()}
            yield
            self.seen["released"] = self.digest()

        def digest(self) -> str:
            return digest(dict(model.named_parameters()))

        def publish(self, version: WeightVersion) -> None:
            self.seen["published"] = self.digest()
            super().publish(version)

    policy = Watching()
    policy.lock = policy.guarded()  # type: ignore[assignment]
    before = policy.digest()
    make(model, updates_per_step=2).update(cast(Policy, policy), None, *random_step(0, REWARDS))
    assert policy.seen["locked"] == before
    assert policy.seen["published"] == policy.seen["released"] == policy.digest() != before


def test_metrics_count_tokens_with_and_without_sharing_and_the_age_of_samples() -> None:
    trainer, policy = make(small_model()), LocalPolicy()
    trajectories, verdicts = random_step(0, REWARDS)
    trainer.update(policy, None, trajectories, verdicts)
    metrics = trainer.update(
        policy, None, trajectories, verdicts
    )  # the same again: one version old
    fed = [t for t in trajectories if t.group_id != "g2"]
    assert metrics["train/tokens"] == sum(t.num_trainable for t in fed)
    assert metrics["train/tokens_flat"] == sum(len(t.segments[0]) - 1 for t in fed)
    assert 0 < metrics["train/tokens_forward"] < metrics["train/tokens_flat"] / 2
    assert metrics["train/staleness_mean"] == metrics["train/staleness_max"] == 1.0
    assert metrics["train/logprob_gap"] >= abs(metrics["train/logprob_gap_signed"]) > 0


def test_a_reference_is_refused() -> None:
    policy = LocalPolicy()
    with pytest.raises(UsageError, match="reference is not supported yet"):
        make(small_model()).update(policy, policy, [], {})


def test_a_policy_that_takes_no_weights_is_refused_before_any_work() -> None:
    class Remote:
        name = "remote"
        version = WeightVersion(0)
        context_length = 128

    trainer = make(small_model())
    with pytest.raises(UsageError, match="remote cannot be trained"):
        trainer.update(cast(Policy, Remote()), None, [], {})
    assert trainer.version == 0


def test_a_policy_of_another_version_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="runs version 3, the trainer holds 0"):
        make(small_model()).update(LocalPolicy(version=3), None, [], {})
