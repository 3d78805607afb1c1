"""Keys and values of one batch, and attention over them.

All rows of a batch took the same number of steps, so their own keys (the suffix) form one tensor
without padding; the prompt's keys are kept once per prompt and read by all its rows. Both are
float32 also for a bfloat16 model: so does the training forward attend, and it is faster on CPU.

Shapes: P prompts, N rows, W most rows of one prompt, S suffix length, L longest prompt, K key-value
heads, G query heads per key-value head, C head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from practicum.policy.model.forest import Forest
from practicum.policy.model.transformer import Shape

FIRST_STEPS = 16
"""Suffix steps allocated at first; the room doubles when it is full."""


class Cache:
    """Keys and values of the prompts in a forest and of what is sampled after them."""

    def __init__(
        self,
        shape: Shape,
        forest: Forest,
        packed: list[tuple[Tensor, Tensor]],
        max_rows: int,
    ) -> None:
        """`packed` holds keys and values [T, K, C] per layer; it is emptied, to keep one copy."""
        self._shape = shape
        self.lengths = torch.tensor([len(path) for path in forest.paths])
        longest = int(self.lengths.max())
        places = torch.zeros(len(self.lengths), longest, dtype=torch.int64)
        for prompt, path in enumerate(forest.paths):
            places[prompt, : len(path)] = torch.from_numpy(path)
        dtype = packed[0][0].dtype
        padding = torch.arange(longest) >= self.lengths[:, None]
        self._bias = torch.zeros(padding.shape, dtype=dtype).masked_fill_(padding, -torch.inf)
        self._keys: list[Tensor] = []  # [P, K, C, L] per layer
        self._values: list[Tensor] = []  # [P, K, L, C]
        packed.reverse()
        while packed:
            key_TKC, value_TKC = packed.pop()
            self._keys.append(key_TKC[places].permute(0, 2, 3, 1).contiguous())
            self._values.append(value_TKC[places].permute(0, 2, 1, 3).contiguous())
        self.num_steps = 0
        self._max_rows = max_rows
        self._suffix = self._room(FIRST_STEPS, dtype)  # [layers, 2, rows, K, steps, C]

    def _room(self, num_steps: int, dtype: torch.dtype) -> Tensor:
        shape = self._shape
        return torch.empty(
            (shape.num_layers, 2, self._max_rows, shape.num_kv_heads, num_steps, shape.head_size),
            dtype=dtype,
        )

    def begin_step(self, sources: Sequence[int], prompts: Sequence[int]) -> None:
        """Row i continues what was row `sources[i]`, under prompt `prompts[i]`, by one token."""
        moved = [row for row, source in enumerate(sources) if row != source]
        if moved and self.num_steps:
            filled = self._suffix[..., : self.num_steps, :]
            filled[:, :, moved] = filled[:, :, [sources[row] for row in moved]]
        if self.num_steps == self._suffix.shape[4]:
            larger = self._room(2 * self.num_steps, self._suffix.dtype)
            live = len(sources)
            larger[:, :, :live, :, : self.num_steps] = self._suffix[:, :, :live]
            self._suffix = larger
        self.num_steps += 1
        self._group(prompts)

    def keep_prompts(self, kept: Sequence[int]) -> None:
        """Forget the prompts that no row needs any more; the others are renumbered in order."""
        index = torch.tensor(kept)
        self.lengths, self._bias = self.lengths[index], self._bias[index]
        longest = int(self.lengths.max())
        self._bias = self._bias[:, :longest]
        self._keys = [key[index, ..., :longest] for key in self._keys]
        self._values = [value[index, :, :longest] for value in self._values]

    def _group(self, prompts: Sequence[int]) -> None:
        """Index tables between rows and the grid [P, W] of prompts and their rows, per K head."""
        num_rows, num_prompts, num_kv = len(prompts), len(self.lengths), self._shape.num_kv_heads
        prompt_N = torch.tensor(prompts)
        place_N = torch.empty(num_rows, dtype=torch.int64)
        seen = [0] * num_prompts
        for row, prompt in enumerate(prompts):
            place_N[row] = seen[prompt]
            seen[prompt] += 1
        width = max(seen)
        heads = torch.arange(num_kv)
        grid = torch.zeros(num_prompts, width, dtype=torch.int64)  # free places read row 0, unused
        grid[prompt_N, place_N] = torch.arange(num_rows)
        self._into_grid = (grid[:, None, :] * num_kv + heads[:, None]).flatten()
        out = (prompt_N[:, None] * num_kv + heads) * width + place_N[:, None]
        self._out_of_grid = out.flatten()
        self._grid = (num_prompts * num_kv, width)
        self._grid_bias = self._bias.repeat_interleave(num_kv, 0)[:, None]

    def attend(self, layer: int, query_NHC: Tensor, key_NKC: Tensor, value_NKC: Tensor) -> Tensor:
        """Store the new token's key and value, then attend to prompt and suffix; [N, H, C].

        One product per key-value head with the G query heads (and, in the prompt, all rows of the
        prompt) side by side; the softmax runs over both parts together.
        """
        num_rows, num_heads, head_size = query_NHC.shape
        num_kv, (heads_in_grid, width) = key_NKC.shape[1], self._grid
        group = num_heads // num_kv
        longest = self._bias.shape[1]
        own = self._suffix[layer, :, :num_rows, :, : self.num_steps]
        own[0, :, :, -1], own[1, :, :, -1] = key_NKC, value_NKC
        own_keys, own_values = own.flatten(1, 2)  # [N * K, S, C]
        query = (query_NHC * head_size**-0.5).view(num_rows * num_kv, group, head_size)

        gridded = query.flatten(1).index_select(0, self._into_grid)
        gridded = gridded.view(heads_in_grid, width * group, head_size)
        scores = torch.baddbmm(self._grid_bias, gridded, self._keys[layer].flatten(0, 1))
        scores = scores.view(-1, group * longest).index_select(0, self._out_of_grid)
        own_scores = torch.bmm(query, own_keys.transpose(1, 2))
        scores = torch.cat((scores.view(-1, group, longest), own_scores), dim=-1)

        weights = scores.softmax(-1)
        gridded = weights[..., :longest].reshape(-1, group * longest)
        gridded = gridded.index_select(0, self._into_grid)
        gridded = gridded.view(heads_in_grid, width * group, longest)
        attended = torch.bmm(gridded, self._values[layer].flatten(0, 1))
        attended = attended.view(-1, group * head_size).index_select(0, self._out_of_grid)
        attended = attended.view(-1, group, head_size)
        attended = torch.baddbmm(attended, weights[..., longest:], own_values)
        return attended.view(num_rows, num_heads, head_size)
