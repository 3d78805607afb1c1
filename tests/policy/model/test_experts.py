"""A mixture of experts against its definition, one token and one expert at a time."""

import pytest
import torch
from torch import Tensor

from practicum.policy.model import ops
from practicum.policy.model.experts import mix, route
from practicum.policy.model.native import kernels
from practicum.policy.model.shape import Experts

T, D, E, INNER = 23, 12, 6, 10


def weights() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, router, gates and ups, downs."""
    draw = torch.Generator().manual_seed(0)
    sizes = ((T, D), (E, D), (E, 2 * INNER, D), (E, D, INNER))
    x, router, gate_up, down = (torch.randn(s, generator=draw, dtype=torch.double) for s in sizes)
    return x, router, gate_up, down


def plain_mix(experts: Experts) -> Tensor:
    x, router, gate_up, down = weights()
    rows: list[Tensor] = []
    for token in x:
        probabilities = (router @ token).softmax(-1)
        chosen = probabilities.argsort(descending=True)[: experts.top_k]
        total = probabilities[chosen].sum() if experts.normalise else 1.0
        row = torch.zeros(D, dtype=torch.double)
        for expert in chosen.tolist():
            gate, up = (gate_up[expert] @ token).chunk(2)
            row += down[expert] @ (gate * gate.sigmoid() * up) * probabilities[expert] / total
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("top_k", [1, 3, E])
def test_a_mixture_is_the_weighted_sum_of_the_chosen_experts(top_k: int, normalise: bool) -> None:
    experts = Experts(E, top_k, INNER, normalise)
    torch.testing.assert_close(mix(*weights(), experts, "silu"), plain_mix(experts))


@pytest.mark.skipif(not kernels.serves(torch.bfloat16), reason="PyTorch's own products vary")
def test_a_token_has_the_same_bits_whoever_stands_beside_it() -> None:
    draw = torch.Generator().manual_seed(1)
    sizes = ((37, 64), (E, 64), (E, 192, 64), (E, 64, 96))
    x, *rest = (torch.randn(size, generator=draw).mul(0.3).bfloat16() for size in sizes)
    router, gate_up, down = rest
    experts = Experts(E, 3, 96, True)
    together = mix(x, router, gate_up, down, experts, "silu")
    for size in (1, 10):
        parts = [mix(part, router, gate_up, down, experts, "silu") for part in x.split(size)]
        assert torch.equal(torch.cat(parts), together)


def test_experts_that_no_token_chose_have_gradient_zero() -> None:
    x, router, gate_up, down = (tensor.requires_grad_() for tensor in weights())
    experts = Experts(E, 1, INNER, True)
    chosen = set(route(x[:3], router, experts)[1].flatten().tolist())
    mix(x[:3], router, gate_up, down, experts, "silu").sum().backward()
    assert gate_up.grad is not None
    moved = {expert for expert in range(E) if bool(gate_up.grad[expert].any())}
    assert moved == chosen
    assert 0 < len(moved) < E


def test_gradients_pass_a_numerical_check() -> None:
    x, router, gate_up, down = (tensor.requires_grad_() for tensor in weights())
    experts = Experts(E, 2, INNER, True)

    def mixed(*tensors: Tensor) -> Tensor:
        return mix(*tensors, experts, "gelu_tanh")  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(mixed, (x[:4], router, gate_up, down))


def test_half_precision_products_are_summed_in_single_precision() -> None:
    tensors = [tensor.bfloat16() for tensor in weights()]
    experts = Experts(E, 2, INNER, True)
    mixed = mix(*tensors, experts, "silu")  # type: ignore[arg-type]
    assert mixed.dtype == torch.float32
    routed, _ = route(tensors[0], tensors[1], experts)
    assert routed.dtype == torch.float32
    assert ops.widen(routed.sum(-1)).sub(1).abs().max() < 1e-6
