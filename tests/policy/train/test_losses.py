"""The clipped surrogate case by case, and the comparison of trainer and engine."""

import pytest
import torch

from practicum.policy.train.losses import Clip, clipped_surrogate, mismatch

CLIP = Clip(0.2, 0.28)


def surrogate(ratio: float, advantage: float) -> tuple[float, float, bool]:
    """Loss, its derivative in the log-prob, and whether the clip decided."""
    old = torch.tensor([-1.0], dtype=torch.float64)
    now = (old + torch.tensor(ratio, dtype=torch.float64).log()).requires_grad_()
    token = clipped_surrogate(now, old, torch.tensor([advantage], dtype=torch.float64), CLIP)
    token.loss.sum().backward()
    assert now.grad is not None
    return float(token.loss.detach()), float(now.grad), bool(token.clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.1, 2.0, -2.2, False),  # inside
        (1.5, 2.0, -2.56, True),  # already likelier than the clip allows: no more push
        (0.5, 2.0, -1.0, False),  # less likely, and good: pulled back
        (0.5, -2.0, 1.6, True),  # already less likely than the clip allows: no more push
        (1.5, -2.0, 3.0, False),  # likelier, and bad: pushed down
    ],
)
def test_the_clip_stops_only_what_went_far_enough(
    ratio: float, advantage: float, loss: float, clipped: bool
) -> None:
    value, slope, decided = surrogate(ratio, advantage)
    assert value == pytest.approx(loss)
    assert decided == clipped
    assert slope == pytest.approx(0.0 if clipped else -ratio * advantage)


def test_against_itself_the_ratio_is_exactly_one_and_the_gradient_that_of_policy_gradient() -> None:
    now = (torch.randn(1000, dtype=torch.float64) * 30 - 40).requires_grad_()
    advantages = torch.randn(1000, dtype=torch.float64)
    token = clipped_surrogate(now, now.detach(), advantages, CLIP)
    token.loss.sum().backward()
    assert bool((token.ratio == 1.0).all())
    assert not bool(token.clipped.any())
    assert now.grad is not None
    assert torch.equal(now.grad, -advantages)


def test_engine_and_trainer_that_agree_have_no_mismatch() -> None:
    logprobs = torch.tensor([-0.1, -3.0], dtype=torch.float64)
    same = mismatch(logprobs, logprobs)
    assert (same.mean_absolute, same.mean_signed, same.kl_k3) == (0.0, 0.0, 0.0)


def test_mismatch_is_trainer_minus_engine_and_k3_estimates_their_kl() -> None:
    """In expectation over the engine's tokens, k3 is KL(engine || trainer) exactly."""
    engine = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    trainer = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    expected = 0.0
    for p, q in zip(engine, trainer):
        found = mismatch(q.log()[None], p.log()[None])
        assert found.mean_signed == pytest.approx(float((q / p).log()))
        assert found.mean_absolute == pytest.approx(abs(found.mean_signed))
        expected += float(p) * found.kl_k3
    assert expected == pytest.approx(float((engine * (engine / trainer).log()).sum()))
