"""Runs the policy: batches concurrent requests, shares what they share, samples exactly."""

from practicum.policy.engine.engine import Engine
from practicum.policy.engine.options import EngineOptions
from practicum.policy.engine.stats import Stats

__all__ = ["Engine", "EngineOptions", "Stats"]
