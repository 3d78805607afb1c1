"""What there is to practise: domains, their tasks, and the verifiers that judge attempts."""

from practicum.environment.domains.domain import Domain, Limits, NoSuchTask, split_of
from practicum.environment.domains.pool import TaskPool, draw_pool
from practicum.environment.domains.registry import DOMAINS, get_domain
from practicum.environment.domains.reward import (
    VERIFIER_REGISTRY,
    RewardHub,
    compute_reward,
    penalty,
    verify,
)

__all__ = [
    "DOMAINS",
    "VERIFIER_REGISTRY",
    "Domain",
    "Limits",
    "NoSuchTask",
    "RewardHub",
    "TaskPool",
    "compute_reward",
    "draw_pool",
    "get_domain",
    "penalty",
    "split_of",
    "verify",
]
