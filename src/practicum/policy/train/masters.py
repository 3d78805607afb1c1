"""The weights that learn, in full precision, behind the working weights that run.

A learning rate of 1e-5 is below the resolution of bfloat16, so every half-precision parameter has a
float32 *master* that the optimizer moves, with a gradient buffer of the same kind; `publish` rounds
the masters into the working weights. Parameters of a float32 model are their own masters: for them
the optimizer's step itself is what the engine sees, which is why stepping and publishing happen
under one lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)


class Masters:
    """Masters of a model's parameters by name, and the gradients collected for them."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: dict[str, Tensor] = {}
        """Name -> master, in name order; its `.grad` always exists."""
        self._working: dict[str, nn.Parameter] = {}
        """Name -> half-precision parameter, where it is not its own master."""
        self._outdated: set[str] = set()
        """Names whose gradient buffer still holds an earlier pass; the next one overwrites it."""
        for name, parameter in sorted(model.named_parameters()):
            master: Tensor = parameter
            if parameter.dtype in HALF:
                master = parameter.detach().float().requires_grad_()
                self._working[name] = parameter
            master.grad = torch.zeros_like(master)
            self.weights[name] = master

    @property
    def gradients(self) -> list[Tensor]:
        return [master.grad for master in self.weights.values() if master.grad is not None]

    def forget_gradients(self) -> None:
        """Start from zero. Buffers stay, since fresh memory costs more than writing it again."""
        self._outdated = set(self._working)
        for name in self.weights.keys() - self._working.keys():
            self._gradient(name).zero_()

    @contextmanager
    def collecting(self) -> Generator[None]:
        """Within, every backward pass adds its gradients to the masters' buffers.

        A half-precision gradient is taken over as soon as it is complete and its memory is used
        again for the next one, so the working gradients never exist all at once.
        """
        handles = [
            parameter.register_post_accumulate_grad_hook(self._taker(name))
            for name, parameter in self._working.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            while self._outdated:  # parameters that no backward pass reached
                self._gradient(self._outdated.pop()).zero_()

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the working weights."""
        for name, parameter in self._working.items():
            parameter.copy_(self.weights[name])

    def _gradient(self, name: str) -> Tensor:
        gradient = self.weights[name].grad
        assert gradient is not None
        return gradient

    def _taker(self, name: str) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if name in self._outdated:
                self._gradient(name).copy_(parameter.grad)
                self._outdated.discard(name)
            else:
                self._gradient(name).add_(parameter.grad)
            parameter.grad = None

        return take


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes in name order: equal just if the weights are."""
    state = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().contiguous().flatten().view(torch.uint8)
        state.update(flat.numpy().data)
    return state.hexdigest()
