"""The arithmetic of a decoder, written once for rollout, scoring and training.

Every function is differentiable and gives a row the same bits whatever other rows stand beside it.
Matrix products take the model's dtype and return float32; so do the residual stream, rotations and
activations, and results are rounded to the model's dtype only where the next product reads them.

Each has a plain PyTorch form, `plain_*`, which defines it, and runs compiled where there is a
kernel for the dtype and the sizes. The gradient is that of the plain form.

Shapes: T tokens, D features in, E features out, I inner features, N heads, C head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from practicum.policy.model import quantised
from practicum.policy.model.native import kernels
from practicum.policy.model.native.kernels import Activation, Weight
from practicum.policy.model.native.matrix import Quantised
from practicum.policy.model.products import multiplies_half, product, product_by_rows, widen

FEWEST_ROWS = 16
"""Libraries multiply fewer rows by another path, with other roundings; so there are never fewer."""
FEW_ROWS = 64
"""Up to here a weight as the left factor of a product is faster"""
SMALL_PRODUCT = 1 << 19
"""... unless there are more results than this, to be transposed"""


def rms_norm(x_TD: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """Root-mean-square norm over the last dimension, rounded to the weight's dtype.

    `plus_one`: the stored weight is the deviation from one, as in Gemma. (Zhang and Sennrich 2019)
    """

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return plain_rms_norm(x, w, eps, plus_one)

    if not kernels.serves(weight.dtype, x_TD.shape[-1]):
        return plain(x_TD, weight)

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        return kernels.rms_norm(x, w, eps, plus_one)

    return compiled(kernel, plain, x_TD, weight)


def plain_rms_norm(x_TD: Tensor, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    scale = widen(weight) + 1.0 if plus_one else widen(weight)
    return F.rms_norm(x_TD, (x_TD.shape[-1],), scale.to(x_TD.dtype), eps).to(weight.dtype)


def linear(x_TD: Tensor, weight_ED: Weight, bias_E: Tensor | None = None) -> Tensor:
    """`x W^T + b` as [T, E], at least float32. `x` has the weight's dtype."""
    if isinstance(weight_ED, Quantised):
        return quantised.linear(x_TD, weight_ED, bias_E)
    if not kernels.serves(weight_ED.dtype, x_TD.shape[-1]):
        out_TE = plain_linear(x_TD, weight_ED)
    elif _needs_gradient(x_TD, weight_ED, *(() if bias_E is None else (bias_E,))):
        out_TE = _Linear.apply(x_TD, weight_ED)
    else:
        return kernels.linear(x_TD, weight_ED, bias_E)
    return out_TE if bias_E is None else out_TE + bias_E


def plain_linear(x_TD: Tensor, weight_ED: Tensor) -> Tensor:
    num_rows, size = x_TD.numel() // x_TD.shape[-1], x_TD.shape[-1]
    if num_rows < FEWEST_ROWS:
        flat = F.pad(x_TD.reshape(num_rows, size), (0, 0, 0, FEWEST_ROWS - num_rows))
        return plain_linear(flat, weight_ED)[:num_rows].unflatten(0, x_TD.shape[:-1])
    if _needs_gradient(x_TD, weight_ED):
        return product(x_TD, weight_ED.t())
    if weight_ED.dtype == torch.bfloat16 and not multiplies_half():
        return product_by_rows(x_TD, weight_ED)
    small = num_rows <= FEW_ROWS and num_rows * len(weight_ED) <= SMALL_PRODUCT
    if small and weight_ED.dtype == torch.bfloat16:
        # Libraries rearrange the right factor of every product, so it should be the small one.
        out_TE = product(weight_ED, x_TD.reshape(num_rows, size).t()).t()
        return out_TE.unflatten(0, x_TD.shape[:-1])
    return widen(F.linear(x_TD, weight_ED))


def rotate(x_TNC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the halves convention; `cos` and `sin` are [T, 1, C]."""
    first, second = x_TNC.chunk(2, dim=-1)
    return x_TNC * cos + torch.cat((-second, first), dim=-1) * sin


def gate(gate_up_T2I: Tensor, kind: Activation, dtype: torch.dtype) -> Tensor:
    """`activation(gate) * up` as [T, I], rounded to `dtype`. The gate stands before the up."""

    def plain(gate_up: Tensor) -> Tensor:
        return plain_gate(gate_up, kind, dtype)

    if not kernels.serves(dtype, gate_up_T2I.shape[-1] // 2):
        return plain(gate_up_T2I)

    def kernel(gate_up: Tensor) -> Tensor:
        return kernels.gate(gate_up, kind)

    return compiled(kernel, plain, gate_up_T2I)


def plain_gate(gate_up_T2I: Tensor, kind: Activation, dtype: torch.dtype) -> Tensor:
    gated, up = gate_up_T2I.chunk(2, dim=-1)
    active = F.silu(gated) if kind == "silu" else F.gelu(gated, approximate="tanh")
    return (active * up).to(dtype)


def softcap(x: Tensor, cap: float) -> Tensor:
    """Squash smoothly into (-cap, cap), as Gemma 2 does."""
    return torch.tanh(x / cap) * cap


Function = Callable[..., Tensor]


def compiled(kernel: Function, plain: Function, *tensors: Tensor) -> Tensor:
    """`kernel(*tensors)`, with the gradient of `plain(*tensors)` if one is needed."""
    if not _needs_gradient(*tensors):
        return kernel(*tensors)
    return _Compiled.apply(kernel, plain, *tensors)


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class _Compiled(torch.autograd.Function):
    """A kernel forward; backward the plain form is run again and differentiated."""

    @staticmethod
    def forward(ctx: Any, kernel: Function, plain: Function, *tensors: Tensor) -> Tensor:
        ctx.plain = plain
        ctx.save_for_backward(*tensors)
        return kernel(*tensors)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - once_differentiable hides names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.plain(*inputs)
        return None, None, *torch.autograd.grad(output, inputs, grad_outputs[0])


class _Linear(torch.autograd.Function):
    """The product whose gradients are two more products, in the weight's dtype."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_ED: Tensor) -> Tensor:
        ctx.save_for_backward(x_TD, weight_ED)
        return kernels.linear(x_TD, weight_ED)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - once_differentiable hides names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        x_TD, weight_ED = ctx.saved_tensors
        grad_TE = grad_outputs[0].to(weight_ED.dtype)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = product(grad_TE, weight_ED).to(x_TD.dtype)
        if ctx.needs_input_grad[1]:
            factors = grad_TE.flatten(0, -2).t(), x_TD.flatten(0, -2)
            grad_weight = product(*factors).to(weight_ED.dtype)
        return grad_x, grad_weight
