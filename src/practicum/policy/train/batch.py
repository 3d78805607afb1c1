"""Tokens to train on, laid out for the network: columns per target, branches per sequence.

The one thing to know: only what is needed is computed. A sequence is fed up to the token before its
last target, shared prefixes go through the network once (`policy.model.forest`), and the head reads
each predicting node once, however many samples continue from it.

The layout is canonical (groups are sorted here, attempts in `groups.score`): the order in which
they arrive changes no bit of the result.

Shapes: N targets of the batch, M targets of a micro-batch, R distinct nodes that predict them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from practicum.policy.model.forest import Forest, plant
from practicum.types import Segment

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is known of one trajectory once it is scored."""

    segments: tuple[Segment, ...]
    advantage: float
    weight: float
    """Of each of its tokens in the loss; all denominators are folded in."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One sequence as it is fed, and what it is asked for.

    Example:
        tokens [5, 6, 7, 8] with the mask [0, 0, 1, 1] are fed as [5, 6, 7]; the targets 7 and 8 are
        predicted at the places [1, 2].
    """

    fed_ids: Ints
    """Everything before the last target."""
    predictors: Ints
    """For each target, the place in `fed_ids` that predicts it."""
    targets: Ints
    behaviour: Floats
    """Log-prob that the engine recorded for each target."""
    versions: Ints
    attempt: Attempt
    first_column: int
    """Where its targets begin in the columns of the batch."""


Unit = tuple[tuple[Branch, ...], ...]
"""A group: the branches of each of its trajectories. Kept together, so its prompt is shared."""

Trie: TypeAlias = "dict[int, Trie]"


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything one step trains on. Columns are in the order of the units."""

    units: tuple[Unit, ...]
    targets: Tensor
    """int64 [N]"""
    behaviour: Tensor
    """float64 [N]: log-prob that the engine recorded"""
    advantages: Tensor
    """float64 [N]"""
    weights: Tensor
    """float64 [N]"""
    versions: Tensor
    """int64 [N]: weight version that sampled the target"""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def num_flat_tokens(self) -> int:
        """Tokens that would go through the network without sharing."""
        return sum(len(branch.fed_ids) for branch in _branches(self.units))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What goes through the network at once."""

    forest: Forest
    nodes: Tensor
    """int64 [R]: distinct nodes of the forest that predict a target, ascending"""
    rows: Tensor
    """int64 [M]: which of `nodes` predicts each target"""
    columns: Tensor
    """int64 [M]: where each target stands in the batch"""


def assemble(groups: Sequence[Sequence[Attempt]]) -> Batch:
    """Lay out the attempts, groups with a common preamble side by side.

    The order of the list decides only between groups of equal tokens.
    """
    units: list[Unit] = []
    num_columns = 0
    for group in sorted(groups, key=_layout_key):
        unit: list[tuple[Branch, ...]] = []
        for attempt in group:
            branches: list[Branch] = []
            for segment in attempt.segments:
                if segment.num_trainable:
                    branches.append(_branch(attempt, segment, num_columns))
                    num_columns += segment.num_trainable
            if branches:
                unit.append(tuple(branches))
        if unit:
            units.append(tuple(unit))
    branches = list(_branches(units))
    return Batch(
        units=tuple(units),
        targets=_column([branch.targets for branch in branches], np.int64),
        behaviour=_column([branch.behaviour for branch in branches], np.float64),
        advantages=_column([_repeated(b, b.attempt.advantage) for b in branches], np.float64),
        weights=_column([_repeated(b, b.attempt.weight) for b in branches], np.float64),
        versions=_column([branch.versions for branch in branches], np.int64),
    )


def micro_batches(batch: Batch, max_tokens: int) -> list[MicroBatch]:
    """Split into forests of at most `max_tokens` distinct tokens.

    Groups stay together where they fit; a larger one is split by trajectories, and a trajectory
    that is longer than the limit by itself goes alone.
    """
    return list(_split(batch.units, max_tokens)) if batch.units else []


def _layout_key(group: Sequence[Attempt]) -> list[list[int]]:
    """Groups with a common preamble become neighbours, whatever order they arrive in."""
    return [segment.token_ids.tolist() for attempt in group for segment in attempt.segments]


def _split(units: Sequence[Unit], max_tokens: int) -> Iterator[MicroBatch]:
    for run, num_distinct in _runs(units, max_tokens):
        branches = list(_branches(run))
        alone = len(run) == 1 and len(run[0]) == 1
        if num_distinct <= max_tokens or alone:
            forest = plant([branch.fed_ids.tolist() for branch in branches])
            if len(forest) <= max_tokens or alone:  # a forest may decline to share
                yield _micro_batch(forest, branches)
                continue
        if len(run) == 1:
            yield from _split([(trajectory,) for trajectory in run[0]], max_tokens)
        else:
            middle = len(run) // 2
            yield from _split(run[:middle], max_tokens)
            yield from _split(run[middle:], max_tokens)


def _runs(units: Sequence[Unit], max_tokens: int) -> Iterator[tuple[list[Unit], int]]:
    """Fill up in order: runs of units, each with its number of distinct tokens.

    Only a single unit can exceed the limit.
    """
    run: list[Unit] = []
    trie: Trie = {}
    size = 0
    for unit in units:
        added = _grow(trie, unit)
        if run and size + added > max_tokens:
            yield run, size
            run, trie, size = [], {}, 0
            added = _grow(trie, unit)
        run.append(unit)
        size += added
    yield run, size


def _grow(trie: Trie, unit: Unit) -> int:
    """Add what a unit feeds; returns how many tokens are new."""
    added = 0
    for branch in _branches([unit]):
        node = trie
        for token in branch.fed_ids.tolist():
            if token not in node:
                node[token] = {}
                added += 1
            node = node[token]
    return added


def _micro_batch(forest: Forest, branches: Sequence[Branch]) -> MicroBatch:
    predicting = [path[branch.predictors] for path, branch in zip(forest.paths, branches)]
    columns = [branch.first_column + np.arange(len(branch.predictors)) for branch in branches]
    nodes, rows = np.unique(np.concatenate(predicting), return_inverse=True)
    return MicroBatch(
        forest=forest,
        nodes=torch.from_numpy(nodes),
        rows=torch.from_numpy(rows),
        columns=torch.from_numpy(np.concatenate(columns)),
    )


def _branches(units: Sequence[Unit]) -> Iterator[Branch]:
    return (branch for unit in units for trajectory in unit for branch in trajectory)


def _branch(attempt: Attempt, segment: Segment, first_column: int) -> Branch:
    places = np.flatnonzero(np.frombuffer(segment.loss_mask, dtype=np.uint8))
    assert places[0] > 0, "the first token of a sequence has nothing that predicts it"
    ids = np.asarray(segment.token_ids, dtype=np.int64)
    return Branch(
        fed_ids=ids[: places[-1]],
        predictors=places - 1,
        targets=ids[places],
        behaviour=np.asarray(segment.logprobs, dtype=np.float64)[places],
        versions=np.asarray(segment.versions, dtype=np.int64)[places],
        attempt=attempt,
        first_column=first_column,
    )


def _repeated(branch: Branch, value: float) -> Floats:
    return np.full(len(branch.targets), value, dtype=np.float64)


def _column(parts: Sequence[Ints] | Sequence[Floats], dtype: type[np.generic]) -> Tensor:
    """One tensor of all parts; the empty part in front makes it work without any."""
    return torch.from_numpy(np.concatenate([np.empty(0, dtype=dtype), *parts]))
