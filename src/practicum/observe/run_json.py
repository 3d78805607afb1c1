"""A run, or one trajectory, as JSON for other programs: plain ASCII, valid for every parser."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any, cast

import msgspec

from practicum.observe.run_folder import RunFolder
from practicum.observe.store import TrajectoryStore
from practicum.observe.summary import summarise


def run_json(path: Path) -> str:
    """What `practicum view` shows of a run. Values that are unknown or infinite are null."""
    summary = summarise(path, num_samples=0)
    return _dump(
        {
            "name": summary.name,
            "model": summary.model,
            "created": summary.created,
            "config": summary.config.model_dump(mode="json"),
            "steps_done": summary.steps_done,
            "evaluations": [{"step": step, "accuracy": found} for step, found in summary.evals],
            "compared_steps": summary.compared_steps,
            "comparisons": summary.comparisons,
            "reward": summary.reward,
            "domain_rewards": summary.domain_rewards,
            "mix": summary.mix,
            "speed": summary.speed,
            "outcomes": summary.outcomes,
            "failures": summary.failures,
            "findings": summary.findings,
            "provenance": dict(summary.provenance),
        }
    )


def trajectory_json(path: Path, trajectory_id: str) -> str:
    """One stored trajectory with its task, verdict and the step that trained on it.

    Bytes (the loss mask) are base64. Raises UsageError if there is no such trajectory.
    """
    store = TrajectoryStore(RunFolder.open(path).trajectories, read_only=True)
    try:
        return _dump(store.trajectory(trajectory_id))
    finally:
        store.close()


def _dump(value: Any) -> str:
    encoded = msgspec.json.encode(value, enc_hook=_array_to_list)
    return json.dumps(json.loads(encoded), indent=2)


def _array_to_list(value: Any) -> list[Any]:
    assert isinstance(value, array), f"{type(value).__name__} has no JSON form"
    return cast("array[Any]", value).tolist()
