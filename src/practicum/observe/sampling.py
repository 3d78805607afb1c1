"""Which few trajectories a report shows: every domain, passes and fails, early and late, by a rule.

Nothing is picked for looking good: the choice is a fixed function of the stored rows.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from practicum.observe.segments import TrajectoryRow

Cell = tuple[int, int, str]


def choose(
    rows: Sequence[TrajectoryRow], steps: Mapping[str, int], limit: int
) -> list[TrajectoryRow]:
    """Up to `limit` rows that a step trained on, in the order of steps.

    Rows fall into cells, cells take turns, and within a cell the order is that of a hash.
    """
    trained = [row for row in rows if row.group_id in steps]
    if not trained:
        return []
    num_steps = max(steps[row.group_id] for row in trained) + 1
    cells: defaultdict[Cell, list[TrajectoryRow]] = defaultdict(list)
    for row in trained:
        cells[_cell(row, steps[row.group_id] / num_steps)].append(row)
    for cell in cells.values():
        cell.sort(key=_shuffled, reverse=True)  # so that pop() takes the first
    chosen: list[TrajectoryRow] = []
    while len(chosen) < limit and any(cells.values()):
        for key in sorted(cells):
            if cells[key] and len(chosen) < limit:
                chosen.append(cells[key].pop())
    return sorted(chosen, key=lambda row: (steps[row.group_id], row.domain, row.trajectory_id))


def _cell(row: TrajectoryRow, progress: float) -> Cell:
    """The first and the last third of the steps come first, since they show what has changed.

    Attempts that were not scored share one cell per outcome: they say little of the policy.
    """
    if row.score is None:
        return (1, 0, row.outcome)
    ending = int(row.score < 0.5)
    if 1 / 3 <= progress < 2 / 3:
        return (2, ending, row.domain)
    return (0, 2 * int(progress >= 2 / 3) + ending, row.domain)


def _shuffled(row: TrajectoryRow) -> str:
    return hashlib.sha256(row.trajectory_id.encode("utf-8", "replace")).hexdigest()
