"""The gradient of a step against a flat reference of the formulae, and what may not change it."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from practicum.policy.model.transformer import Transformer
from practicum.types import Segment, Trajectory
from practicum.verdicts import Verdict

from .models import (
    CLIP,
    L_MAX,
    assert_equal_gradients,
    collect,
    flat_logprobs,
    random_step,
    small_model,
    trajectory,
)

REWARDS = [[1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 0.0, 0.0], [0.2, 0.9, 0.4, 0.3]]
ALGORITHM_NAMES = pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo"])


def reference(
    model: Transformer,
    trajectories: Sequence[Trajectory],
    verdicts: dict[str, Verdict],
    algorithm: str,
    *,
    from_recorded: bool = False,
    temperature: float = 1.0,
) -> tuple[float, dict[str, Tensor]]:
    """-1/P sum over P groups of 1/G sum_i (1/|y_i| or 1/L_max) sum_t min(r A, clip(r) A)."""
    groups: dict[str, list[Trajectory]] = {}
    for attempt in trajectories:
        groups.setdefault(attempt.group_id, []).append(attempt)
    objective = torch.zeros((), dtype=torch.float64)
    for group in groups.values():
        rewards = torch.tensor([verdicts[t.id].reward for t in group], dtype=torch.float64)
        advantages = rewards - rewards.mean()
        if algorithm == "grpo":
            advantages = advantages / rewards.std()
        of_group = torch.zeros((), dtype=torch.float64)
        for attempt, advantage in zip(group, advantages):
            terms: list[Tensor] = []
            for segment in attempt.segments:
                logprobs = flat_logprobs(model, [segment.token_ids], temperature)[0]
                for place, mask in enumerate(segment.loss_mask):
                    if mask:
                        now = logprobs[place - 1]
                        old = segment.logprobs[place] if from_recorded else now.detach()
                        ratio = torch.exp(now - old)
                        clipped = ratio.clamp(1 - CLIP.low, 1 + CLIP.high)
                        terms.append(torch.minimum(ratio * advantage, clipped * advantage))
            of_group = of_group + sum(terms) / (len(terms) if algorithm == "grpo" else L_MAX)
        objective = objective + of_group / len(group)
    loss = -objective / len(groups)
    names, parameters = zip(*model.named_parameters())
    return float(loss.detach()), dict(zip(names, torch.autograd.grad(loss, parameters)))


@ALGORITHM_NAMES
@pytest.mark.parametrize("from_recorded", [False, True], ids=["on_policy", "clipped"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_loss_and_gradient_follow_the_formulae(
    algorithm: str, from_recorded: bool, tied: bool
) -> None:
    model = small_model(tied=tied)
    trajectories, verdicts = random_step(0, REWARDS)
    seen, gradients, batch = collect(
        model, trajectories, verdicts, algorithm, from_recorded=from_recorded, temperature=0.7
    )
    loss, expected = reference(
        model, trajectories, verdicts, algorithm, from_recorded=from_recorded, temperature=0.7
    )
    assert seen.base.loss == pytest.approx(loss, rel=1e-9)
    assert_equal_gradients(gradients, expected)
    assert len(batch) == sum(t.num_trainable for t in trajectories)
    assert (seen.clip_share > 0) == from_recorded


@ALGORITHM_NAMES
@pytest.mark.parametrize("max_tokens", [1, 12, 25, 60])
def test_micro_batches_and_prefix_sharing_leave_the_gradient_unchanged(
    algorithm: str, max_tokens: int
) -> None:
    """With a limit of 1 every trajectory goes alone, so that no prefix is shared at all."""
    model = small_model(1)
    step = random_step(1, REWARDS)
    whole, expected, _ = collect(model, *step, algorithm, from_recorded=True)
    parts, gradients, _ = collect(
        model, *step, algorithm, from_recorded=True, max_tokens=max_tokens
    )
    assert parts.base.loss == pytest.approx(whole.base.loss, rel=1e-9)
    assert parts.base.entropy == pytest.approx(whole.base.entropy, rel=1e-9)
    assert torch.allclose(parts.base.logprobs, whole.base.logprobs, rtol=1e-9)
    assert_equal_gradients(gradients, expected)


@ALGORITHM_NAMES
def test_the_order_of_arrival_changes_no_bit(algorithm: str) -> None:
    model = small_model(2)
    trajectories, verdicts = random_step(2, REWARDS)
    first, expected, _ = collect(model, trajectories, verdicts, algorithm, max_tokens=40)
    random.Random(5).shuffle(trajectories)
    second, gradients, _ = collect(model, trajectories, verdicts, algorithm, max_tokens=40)
    assert first.base.loss == second.base.loss
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


@ALGORITHM_NAMES
def test_groups_without_signal_are_not_fed_and_still_count(algorithm: str) -> None:
    """One of three: it adds nothing to the sum and one to what the sum is divided by."""
    model = small_model(3)
    trajectories, verdicts = random_step(3, [REWARDS[0], [1.0] * 4, REWARDS[1]])
    fed = [t for t in trajectories if t.group_id != "g1"]
    _, gradients, batch = collect(model, trajectories, verdicts, algorithm)
    assert len(batch) == sum(t.num_trainable for t in fed)
    _, expected = reference(model, fed, verdicts, algorithm)
    assert_equal_gradients(gradients, {n: g * 2 / 3 for n, g in expected.items()})


def test_only_recorded_log_probs_of_sampled_tokens_are_read() -> None:
    model = small_model(4)
    trajectories, verdicts = random_step(4, REWARDS)

    def disturbed(segment: Segment) -> Segment:
        noisy = [
            logprob if mask else float("nan")
            for logprob, mask in zip(segment.logprobs, segment.loss_mask)
        ]
        return replace(segment, logprobs=array("f", noisy), versions=array("i", [9] * len(noisy)))

    others = [replace(t, segments=tuple(map(disturbed, t.segments))) for t in trajectories]
    one, expected, _ = collect(model, trajectories, verdicts, "grpo", from_recorded=True)
    two, gradients, _ = collect(model, others, verdicts, "grpo", from_recorded=True)
    assert one.base.loss == two.base.loss
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_several_turns_and_segments_are_trained_where_the_mask_says() -> None:
    """Two sampled runs with a tool's answer between them, then a new segment after compaction."""
    model = small_model(5)
    verdicts = random_step(5, [[1.0, 0.0]])[1]
    talk = Segment(
        token_ids=array("i", [7, 8, 9, 10, 11, 12, 13, 14]),
        loss_mask=bytes([0, 0, 1, 1, 0, 0, 1, 0]),
        logprobs=array("f", [0, 0, -1, -2, 0, 0, -3, 0]),
        versions=array("i", [0] * 8),
    )
    rest = Segment.of([7, 30], [31, 32, 33], [-1, -1, -4], [0, 0, 0])
    short = Segment.of([7, 8], [9, 11], [-1, -1], [0, 0])
    trajectories = [trajectory(0, 0, [talk, rest]), trajectory(0, 1, [short])]
    for algorithm in ("grpo", "dr_grpo"):
        _, gradients, batch = collect(model, trajectories, verdicts, algorithm, from_recorded=True)
        assert len(batch) == 8
        _, expected = reference(model, trajectories, verdicts, algorithm, from_recorded=True)
        assert_equal_gradients(gradients, expected)


def test_half_precision_collects_the_same_gradient_up_to_its_rounding() -> None:
    step = random_step(6, REWARDS)
    _, expected, _ = collect(small_model(6), *step, "dr_grpo")
    half = small_model(6, torch.bfloat16)
    _, gradients, _ = collect(half, *step, "dr_grpo", max_tokens=30)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32
        cosine = torch.cosine_similarity(gradient.double().flatten(), expected[name].flatten(), 0)
        assert cosine > 0.99, name
    assert all(p.grad is None for p in half.parameters() if p.dtype == torch.bfloat16)
