"""The forward pass of training, in bounded memory.

The one thing to know: what a layer computed is kept for the backward pass only while the forest is
small. Of a larger one each layer keeps its input and is run again when its gradient is due: about a
third more work, a fraction of the memory, and the same bits.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from practicum.policy.model.forest import Forest
from practicum.policy.model.forest_memory import ForestMemory
from practicum.policy.model.transformer import Layer, Rotation, Transformer

KEEP_TOKENS = 640
"""Largest forest whose activations are kept: about 0.8 GB for a model of 135 M parameters."""


def hidden_states(model: Transformer, forest: Forest, keep_tokens: int = KEEP_TOKENS) -> Tensor:
    """Final hidden states of the forest's tokens, [T, D]."""
    memory = ForestMemory(forest, model.shape)
    if len(forest) <= keep_tokens:
        return model(forest.token_ids, forest.positions, memory)
    x_TD = model.embed(forest.token_ids)
    rotation = model.rotation(forest.positions)
    for layer in model.layers:
        x_TD = checkpoint(
            _run_layer, layer, memory, rotation, x_TD, use_reentrant=False, preserve_rng_state=False
        )
    return model.final_norm(x_TD)


def _run_layer(layer: Layer, memory: ForestMemory, rotation: Rotation, x_TD: Tensor) -> Tensor:
    query, key, value = layer.project(x_TD, rotation)
    attended = memory.attend(layer.index, query, key, value, layer.rule)
    return layer.finish(x_TD, attended)
