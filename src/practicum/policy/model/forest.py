"""Token sequences as a forest of prefixes: what several sequences share is computed once.

A causal model's state at a token depends only on the tokens before it. So sequences with a common
beginning (the samples of a group, the few-shot preamble of a domain, the turns of a branching
trajectory) can be laid out as a tree in which every distinct prefix is one node, and a token
attends to its ancestors. This is exact, and it is the only layout in Practicum: packing is a forest
of trees with one branch.

Example:
    [5, 6, 7] and [5, 6, 9] become the nodes 5 6 7 9, with positions 0 1 2 2 and the paths
    [0, 1, 2] and [0, 1, 3]: four tokens go through the network instead of six.

Shapes: T distinct tokens, R trees in a block, L longest tree of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TOKEN_COST_PAIRS = 400
"""One token through the matrices of a layer costs about as much as this many query-key pairs.

Measured on a CPU with matrix units (17 us a token, 41 ns a pair); more where those are missing.
"""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Block:
    """Trees of similar size, padded to one shape for attention."""

    index: Tensor
    """int64 [R, L]: which packed token stands at each place (0 at padding)."""
    allowed: Tensor
    """bool [R, 1, L, L]: allowed[r, 0, q, k] if q may attend to k."""


@dataclass(frozen=True, slots=True)
class Forest:
    """A batch of sequences with shared prefixes merged."""

    token_ids: Tensor
    """int64 [T]"""
    positions: Tensor
    """int64 [T]: depth of the token in its tree."""
    blocks: tuple[Block, ...]
    place: Tensor
    """int64 [T]: where each packed token stands in the blocks, flattened and concatenated."""
    paths: tuple[Ints, ...]
    """For each sequence, in the caller's order, the packed index of each of its tokens."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class _Tree:
    """One tree under construction; `start` is the packed index of its first token."""

    start: int
    runs: list[tuple[int, int, int]]
    """(first node, length, parent node or -1), nodes counted within the tree."""
    size: int = 0

    def grow(self, length: int, parent: int) -> int:
        first = self.size
        if length:
            self.runs.append((first, length, parent))
            self.size += length
        return first

    def ancestors(self) -> npt.NDArray[np.bool_]:
        """bool [size, size]: row q is True at q and its ancestors."""
        allowed = np.zeros((self.size, self.size), dtype=np.bool_)
        for first, length, parent in self.runs:
            last = first + length
            if parent >= 0:
                allowed[first:last] = allowed[parent]
            allowed[first:last, first:last] = np.tri(length, dtype=np.bool_)
        return allowed


def plant(sequences: Sequence[Sequence[int]]) -> Forest:
    """Merge the shared prefixes of `sequences` (each non-empty) into a forest.

    Deterministic: the layout depends on the set of sequences and their contents only.
    """
    assert sequences, "a forest needs at least one sequence"
    tokens = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    assert all(len(t) for t in tokens), "a forest cannot hold an empty sequence"
    order = sorted(range(len(tokens)), key=lambda i: tokens[i].tolist())
    paths: list[Ints] = [np.empty(0, dtype=np.int64)] * len(tokens)
    trees: list[_Tree] = []
    packed: list[Ints] = []
    total = 0
    previous = -1
    for current in order:  # neighbours in sorted order share the longest prefixes
        length = len(tokens[current])
        shared = 0
        if previous >= 0:
            shared = _shared_prefix(tokens[previous], tokens[current])
            if not _worth_joining(shared, trees[-1].size):
                shared = 0
        if shared == 0:
            trees.append(_Tree(start=total, runs=[]))
        tree = trees[-1]
        parent_path = paths[previous][:shared] if shared else np.empty(0, dtype=np.int64)
        parent = int(parent_path[-1]) - tree.start if shared else -1
        first = tree.grow(length - shared, parent)
        new = tree.start + first + np.arange(length - shared, dtype=np.int64)
        paths[current] = np.concatenate((parent_path, new))
        packed.append(tokens[current][shared:])
        total += length - shared
        previous = current
    blocks, place = _blocks(trees, total)
    positions = np.empty(total, dtype=np.int64)
    for path in paths:
        positions[path] = np.arange(len(path))
    return Forest(
        token_ids=torch.from_numpy(np.concatenate(packed)),
        positions=torch.from_numpy(positions),
        blocks=blocks,
        place=place,
        paths=tuple(paths),
    )


def _shared_prefix(a: Ints, b: Ints) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _worth_joining(shared: int, tree_size: int) -> bool:
    """Whether a sequence joins the tree with which it shares `shared` tokens, or starts another.

    A tree attends densely, so its cost grows with its square; another tree computes the shared
    tokens again. Of many sequences with the same beginning, trees cost least in all whose remaining
    tokens r satisfy r^2 = shared * (shared + cost): least (shared * cost + (shared + r)^2) / r.
    """
    remaining = tree_size - shared
    return remaining * remaining < shared * (shared + TOKEN_COST_PAIRS)


def _blocks(trees: Sequence[_Tree], total: int) -> tuple[tuple[Block, ...], Tensor]:
    """Pad trees of similar size (within a factor of 1.5) to one shape."""
    place = np.empty(total, dtype=np.int64)
    blocks: list[Block] = []
    offset = 0
    remaining = sorted(trees, key=lambda tree: -tree.size)
    while remaining:
        longest = remaining[0].size
        members = [tree for tree in remaining if tree.size * 1.5 >= longest]
        remaining = remaining[len(members) :]
        index = np.zeros((len(members), longest), dtype=np.int64)
        allowed = np.zeros((len(members), longest, longest), dtype=np.bool_)
        allowed[:, np.arange(longest), np.arange(longest)] = (
            True  # padding attends to itself: no NaN
        )
        for row, tree in enumerate(members):
            nodes = np.arange(tree.size)
            index[row, : tree.size] = tree.start + nodes
            allowed[row, : tree.size, : tree.size] = tree.ancestors()
            place[tree.start + nodes] = offset + row * longest + nodes
        offset += index.size
        blocks.append(Block(torch.from_numpy(index), torch.from_numpy(allowed)[:, None]))
    return tuple(blocks), torch.from_numpy(place)
