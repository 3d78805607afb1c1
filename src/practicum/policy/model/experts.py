"""The mixture of experts in place of an MLP: route, gather by expert, multiply, put back.

The one thing to know: each expert multiplies its own tokens only, and a token sums its experts in
the order of their weights, so its result does not depend on which tokens stand beside it.

Shapes: T tokens, D hidden, E experts, k chosen of them, I inner features of one expert.
"""

from __future__ import annotations

import torch
from torch import Tensor

from practicum.policy.model import ops
from practicum.policy.model.shape import Experts


def route(x_TD: Tensor, router_ED: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """Weights [T, k], at least float32, and int64 indices [T, k] of every token's experts."""
    probabilities_TE = ops.linear(x_TD, router_ED).softmax(-1)
    weights_Tk, chosen_Tk = probabilities_TE.topk(experts.top_k, dim=-1)
    if experts.normalise:
        weights_Tk = weights_Tk / weights_Tk.sum(-1, keepdim=True)
    return weights_Tk, chosen_Tk


def mix(
    x_TD: Tensor,
    router_ED: Tensor,
    gate_up_E2ID: Tensor,
    down_EDI: Tensor,
    experts: Experts,
    activation: ops.Activation,
) -> Tensor:
    """The weighted sum of every token's experts, [T, D], at least float32."""
    weights_Tk, chosen_Tk = route(x_TD, router_ED, experts)
    order = chosen_Tk.flatten().argsort(stable=True)  # of the T * k assignments, by expert
    counts: list[int] = torch.bincount(chosen_Tk.flatten(), minlength=experts.count).tolist()
    gathered = x_TD.index_select(0, order // experts.top_k).split(counts)
    # unbind, not indexing: its gradient is one stack, not a full-sized zero for every expert.
    parts = zip(gathered, gate_up_E2ID.unbind(), down_EDI.unbind(), strict=True)
    outputs = [
        ops.linear(ops.gate(ops.linear(own, gate_up), activation, down.dtype), down)
        for own, gate_up, down in parts
        if len(own)
    ]
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    each_TkD = torch.cat(outputs).index_select(0, places).unflatten(0, (-1, experts.top_k))
    mixed_TD = each_TkD[:, 0] * weights_Tk[:, :1]
    for rank in range(1, experts.top_k):
        mixed_TD = mixed_TD + each_TkD[:, rank] * weights_Tk[:, rank, None]
    return mixed_TD
