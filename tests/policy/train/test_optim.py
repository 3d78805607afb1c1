"""The optimizer against torch's plain AdamW, and what it refuses."""

import math

import pytest
import torch

from practicum.policy.train.masters import Masters, digest
from practicum.policy.train.optim import AdamW, Schedule

from .models import small_model


def fill(masters: Masters, seed: int, scale: float = 1.0) -> None:
    """Random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for gradient in masters.gradients:
        gradient.copy_(torch.randn(gradient.shape, generator=generator) * scale)


def test_steps_are_those_of_torch_with_warm_up_clipping_and_decay_of_matrices() -> None:
    schedule = Schedule(0.01, warmup_updates=3, weight_decay=0.1, max_grad_norm=0.5)
    masters = Masters(small_model())
    optimizer = AdamW(masters, schedule)
    plain = Masters(small_model())
    reference = torch.optim.AdamW(
        [
            {"params": [w for w in plain.weights.values() if w.ndim == 2], "weight_decay": 0.1},
            {"params": [w for w in plain.weights.values() if w.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        foreach=False,
    )
    for step in range(5):
        scale = 1e-4 if step == 4 else 1.0  # the last one is too small to be clipped
        fill(masters, step, scale)
        fill(plain, step, scale)
        update = optimizer.step()
        norm = torch.nn.utils.clip_grad_norm_(list(plain.weights.values()), 0.5)
        for group in reference.param_groups:
            group["lr"] = 0.01 * min(1.0, (step + 1) / 3)
        reference.step()
        assert update.learning_rate == pytest.approx(reference.param_groups[0]["lr"])
        assert update.grad_norm == pytest.approx(float(norm))
    for name, weight in plain.weights.items():
        assert torch.allclose(masters.weights[name], weight, rtol=0, atol=1e-7), name


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(bad: float) -> None:
    masters = Masters(small_model(0, torch.bfloat16))
    optimizer = AdamW(masters, Schedule(0.1))
    fill(masters, 0)
    assert optimizer.step().applied
    weights, moments = digest(masters.weights), digest(optimizer.moments("exp_avg"))
    fill(masters, 1)
    masters.gradients[3].flatten()[1] = bad
    update = optimizer.step()
    assert not update.applied
    assert not math.isfinite(update.grad_norm)
    assert digest(masters.weights) == weights
    assert digest(optimizer.moments("exp_avg")) == moments
    assert optimizer.num_updates == 1


def test_a_learning_rate_of_zero_changes_no_bit() -> None:
    masters = Masters(small_model(0, torch.bfloat16))
    before = digest(masters.weights)
    optimizer = AdamW(masters, Schedule(0.0, weight_decay=0.5))
    fill(masters, 0)
    assert optimizer.step().applied
    assert digest(masters.weights) == before


def test_warm_up_reaches_the_full_rate_at_its_last_update() -> None:
    schedule = Schedule(1.0, warmup_updates=4)
    assert [schedule.rate(n) for n in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert Schedule(1.0).rate(0) == 1.0


def test_the_rate_falls_linearly_from_the_warm_up_to_the_last_update():
    schedule = Schedule(1.0, warmup_updates=2, total_updates=7, decay_to=0.2)
    rates = [schedule.rate(n) for n in range(9)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
