"""Practicum: reinforcement-learning post-training of language models, from a laptop to a cluster.

Everything public is re-exported here, lazily: `import practicum` loads neither torch nor anything
else that is heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from practicum.build import Run, assemble
    from practicum.config import RunConfig, load_recipe
    from practicum.environment.curriculum.scheduler import Scheduler
    from practicum.environment.domains.domain import Domain, Limits
    from practicum.environment.domains.registry import DOMAINS
    from practicum.environment.domains.reward import (
        VERIFIER_REGISTRY,
        RewardHub,
        compute_reward,
        penalty,
    )
    from practicum.environment.qc.report import EnvQC
    from practicum.environment.rollout.rollouts import RolloutEngine
    from practicum.environment.sandbox import open_pool
    from practicum.errors import PracticumError, UsageError
    from practicum.loop import Loop
    from practicum.stages import resume, train
    from practicum.types import Message, Outcome, Segment, Task, Trajectory
    from practicum.verdicts import Group, Verdict, Violation

__version__ = "0.1.0"

_HOME = {
    "Run": "build",
    "assemble": "build",
    "resume": "stages",
    "train": "stages",
    "RunConfig": "config",
    "load_recipe": "config",
    "Scheduler": "environment.curriculum.scheduler",
    "Domain": "environment.domains.domain",
    "Limits": "environment.domains.domain",
    "DOMAINS": "environment.domains.registry",
    "VERIFIER_REGISTRY": "environment.domains.reward",
    "RewardHub": "environment.domains.reward",
    "compute_reward": "environment.domains.reward",
    "penalty": "environment.domains.reward",
    "EnvQC": "environment.qc.report",
    "RolloutEngine": "environment.rollout.rollouts",
    "open_pool": "environment.sandbox",
    "PracticumError": "errors",
    "UsageError": "errors",
    "Loop": "loop",
    "Group": "verdicts",
    "Message": "types",
    "Outcome": "types",
    "Segment": "types",
    "Task": "types",
    "Trajectory": "types",
    "Verdict": "verdicts",
    "Violation": "verdicts",
}
__all__ = [
    "DOMAINS",
    "VERIFIER_REGISTRY",
    "Domain",
    "EnvQC",
    "Group",
    "Limits",
    "Loop",
    "Message",
    "Outcome",
    "PracticumError",
    "RewardHub",
    "RolloutEngine",
    "Run",
    "RunConfig",
    "Scheduler",
    "Segment",
    "Task",
    "Trajectory",
    "UsageError",
    "Verdict",
    "Violation",
    "assemble",
    "compute_reward",
    "load_recipe",
    "open_pool",
    "penalty",
    "resume",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'practicum' has no attribute {name!r}")
    return getattr(importlib.import_module(f"practicum.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
