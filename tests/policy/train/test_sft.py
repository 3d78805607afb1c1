"""Supervised fine-tuning: the loss, the mask, and that it learns."""

import pytest
import torch

from practicum.config import SftConfig
from practicum.errors import UsageError
from practicum.policy.model.transformer import Transformer
from practicum.policy.train.masters import digest
from practicum.policy.train.sft import SftExample, train_sft

from .models import flat_logprobs, small_model

EXAMPLES = [
    SftExample((1, 2, 3), (10, 11, 12, 0)),
    SftExample((1, 2, 4), (20, 0)),
    SftExample((1, 5), (30, 31, 0)),
    SftExample((7,), (40,)),
]


def reference_loss(model: Transformer) -> torch.Tensor:
    """Mean over all response tokens of -log p."""
    terms: list[torch.Tensor] = []
    for example in EXAMPLES:
        logprobs = flat_logprobs(model, [[*example.prompt_ids, *example.response_ids]])[0]
        terms.extend(logprobs[-len(example.response_ids) :])
    return -torch.stack(terms).mean()


def weights_after(model: Transformer, config: SftConfig, **options: int) -> str:
    for _ in train_sft(model, EXAMPLES, config, **({"seed": 0} | options)):
        pass
    return digest(dict(model.named_parameters()))


def test_loss_is_the_mean_over_response_tokens_and_its_gradient_is_followed() -> None:
    model = small_model()
    expected = reference_loss(model)
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    config = SftConfig(steps=1, batch_size=len(EXAMPLES), learning_rate=0.0)
    (metrics,) = train_sft(model, EXAMPLES, config, seed=0)
    assert metrics["sft/loss"] == pytest.approx(float(expected.detach()), rel=1e-9)
    assert metrics["sft/grad_norm"] == pytest.approx(float(norm), rel=1e-9)
    assert metrics["sft/tokens"] == 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_few_examples_are_learnt_by_heart(dtype: torch.dtype) -> None:
    model = small_model(0, dtype)
    config = SftConfig(steps=60, batch_size=4, learning_rate=0.02)
    losses = [metrics["sft/loss"] for metrics in train_sft(model, EXAMPLES, config, seed=0)]
    assert losses[0] > 3.0
    assert losses[-1] < 0.02
    assert float(reference_loss(model).detach()) < 0.05


def test_micro_batches_do_not_change_what_is_learnt() -> None:
    config = SftConfig(steps=3, batch_size=4, learning_rate=0.01)
    whole, parts = small_model(), small_model()
    weights_after(whole, config)
    weights_after(parts, config, micro_batch_tokens=4)
    for left, right in zip(whole.parameters(), parts.parameters()):
        assert torch.allclose(left, right, rtol=1e-7, atol=1e-9)


def test_the_same_seed_gives_the_same_weights_and_another_one_others() -> None:
    config = SftConfig(steps=3, batch_size=2, learning_rate=0.01)
    one, two, other = (
        weights_after(small_model(0, torch.bfloat16), config, seed=seed) for seed in (1, 1, 2)
    )
    assert one == two != other


def test_every_example_is_seen_before_one_is_seen_again() -> None:
    config = SftConfig(steps=4, batch_size=1, learning_rate=0.0)
    lengths = [m["sft/tokens"] for m in train_sft(small_model(), EXAMPLES, config, seed=3)]
    assert sorted(lengths) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "no examples"),
        ([SftExample((), (1,))], "example 0 needs at least one prompt"),
        ([EXAMPLES[0], SftExample((1,), ())], "example 1 needs"),
        ([SftExample((1,) * 120, (2,) * 9)], "has 129 tokens, more than the model's 128"),
    ],
)
def test_examples_that_cannot_be_trained_on_are_refused(
    examples: list[SftExample], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        next(train_sft(small_model(), examples, SftConfig(steps=1), seed=0))
