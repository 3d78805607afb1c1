"""Masters: what they keep that half precision loses, and how gradients reach them."""

import pytest
import torch

from practicum.policy.model.transformer import Transformer
from practicum.policy.train.masters import Masters, digest

from .models import small_model


def backward(model: Transformer, masters: Masters, scale: float = 1.0) -> None:
    with masters.collecting():
        total = sum(parameter.float().sum() for parameter in model.parameters())
        assert isinstance(total, torch.Tensor)
        (total * scale).backward()


def test_steps_below_half_precision_add_up_in_the_master() -> None:
    model = small_model(0, torch.bfloat16)
    masters = Masters(model)
    weight = model.layers[0].get_parameter("qkv")
    weight.data.fill_(1.0)
    masters.weights["layers.0.qkv"].data.fill_(1.0)
    for _ in range(8):
        with torch.no_grad():
            masters.weights["layers.0.qkv"] += 0.001  # bfloat16 resolves 0.0078 at 1
        masters.publish()
    assert float(masters.weights["layers.0.qkv"][0, 0].detach()) == pytest.approx(1.008)
    assert float(weight[0, 0].detach()) == 1.0078125


def test_wide_parameters_are_their_own_masters() -> None:
    half = small_model(0, torch.bfloat16)
    assert not any(Masters(half).weights[name] is p for name, p in half.named_parameters())
    wide = small_model(0, torch.float32)
    assert all(Masters(wide).weights[name] is p for name, p in wide.named_parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_add_up_within_a_step_and_are_forgotten_after(dtype: torch.dtype) -> None:
    model = small_model(0, dtype)
    masters = Masters(model)
    for _ in range(2):
        backward(model, masters)
        backward(model, masters, scale=2.0)
        assert all(bool((gradient == 3.0).all()) for gradient in masters.gradients)
        masters.forget_gradients()


def test_a_parameter_that_no_backward_pass_reached_has_gradient_zero() -> None:
    """Not that of the step before."""
    model = small_model(0, torch.bfloat16)
    masters = Masters(model)
    backward(model, masters)
    masters.forget_gradients()
    with masters.collecting():
        model.norm.float().sum().backward()
    reached = {name for name, w in masters.weights.items() if w.grad is not None and w.grad.any()}
    assert reached == {"norm"}


def test_half_precision_gradients_do_not_stay_and_hooks_do_not_outlive_the_pass() -> None:
    model = small_model(0, torch.bfloat16)
    masters = Masters(model)
    backward(model, masters)
    assert model.norm.grad is None
    model.norm.float().sum().backward()
    assert model.norm.grad is not None
    assert bool((masters.weights["norm"].grad == 1.0).all())  # type: ignore[union-attr]


def test_the_digest_sees_every_bit_every_name_and_every_shape() -> None:
    weights = {name: p.detach().clone() for name, p in small_model(0).named_parameters()}
    before = digest(weights)
    assert digest(dict(reversed(weights.items()))) == before
    renamed = {f"{name}.": tensor for name, tensor in weights.items()}
    assert digest(renamed) != before
    assert digest(weights | {"norm": weights["norm"][None]}) != before
    assert (
        digest(weights | {"norm": weights["norm"].nextafter(torch.tensor(9.0).double())}) != before
    )
