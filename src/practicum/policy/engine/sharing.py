"""Whether a prompt had better wait a step, because another computes its beginning in this one.

A beginning can be found only once it is there, and prompts that arrive together begin alike.
"""

from __future__ import annotations

from practicum.policy.engine.pages import PAGE
from practicum.policy.engine.sequence import Sequence
from practicum.policy.engine.step import Step
from practicum.policy.engine.tables import PageTables

WORTH_WAITING = PAGE // 2
"""Tokens for which a prompt waits a step, to share them with one that is computed in it."""


def is_coming(sequence: Sequence, step: Step, tables: PageTables) -> bool:
    """Whether this step computes a beginning of the sequence that it can have in the next."""
    if sequence.is_parked:
        return False
    least = tables.num_known(sequence) + WORTH_WAITING
    if least >= len(sequence.tokens):
        return False
    return any(
        tables.blocks.reusable(sequence.num_shared(run.sequence, end)) >= least
        for run in step.runs
        if (end := run.first + run.num_tokens) >= least
        and run.first < run.sequence.num_prompt
        and run.sequence.salt == sequence.salt
        and tables.is_shareable(run.sequence)
    )
