"""Speculative decoding that never changes a token: proposers, their controller, verification."""

from practicum.policy.engine.speculation.draft_model import Drafter, DraftModel, coupled_guess
from practicum.policy.engine.speculation.history import History
from practicum.policy.engine.speculation.lookup import PromptLookup
from practicum.policy.engine.speculation.proposal import Guess, Proposer, View
from practicum.policy.engine.speculation.speculator import SpeculationStats, Speculator
from practicum.policy.engine.speculation.verify import verify

__all__ = [
    "DraftModel",
    "Drafter",
    "Guess",
    "History",
    "PromptLookup",
    "Proposer",
    "SpeculationStats",
    "Speculator",
    "View",
    "coupled_guess",
    "verify",
]
