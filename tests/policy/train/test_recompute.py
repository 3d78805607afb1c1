"""Running layers again in the backward pass: the same bits, and less to keep."""

import pytest
import torch
from torch import Tensor

from practicum.policy.model.forest import plant
from practicum.policy.train.recompute import hidden_states

from .models import small_model

FOREST = plant([[1, 2, 3, 4], [1, 2, 5], [7, 8, 9, 10, 11]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_values_and_gradients_have_the_same_bits(dtype: torch.dtype) -> None:
    model = small_model(0, dtype)
    found: list[list[Tensor]] = []
    for keep_tokens in (len(FOREST), len(FOREST) - 1):
        hidden = hidden_states(model, FOREST, keep_tokens)
        found.append(
            [hidden, *torch.autograd.grad(hidden.square().sum(), list(model.parameters()))]
        )
    assert all(torch.equal(kept, again) for kept, again in zip(*found))


def test_a_large_forest_keeps_much_less() -> None:
    model = small_model()
    forest = plant([range(20 * i, 20 * i + 20) for i in range(3)])
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes[-1] += tensor.numel()
        return tensor

    for keep_tokens in (len(forest), 0):
        sizes.append(0)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            hidden_states(model, forest, keep_tokens)
    kept, again = sizes
    assert again < kept / 4
