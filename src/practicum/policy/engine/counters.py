"""What sharing, swapping and preemption have done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the scheduler was made."""

    sequences: int = 0
    """Admitted for the first time."""
    hits: int = 0
    """Of those, how many found a beginning of theirs computed already."""
    reused_tokens: int = 0
    """Tokens that those did not compute."""
    joined_requests: int = 0
    """Requests that joined a sequence of the same prompt instead of making their own."""
    preemptions: int = 0
    restarts: int = 0
    """Sequences that gave up what was computed of them, to be computed again, for want of room."""
    lost_requests: int = 0
    """Ended for want of room, where computing again would not have given the same."""
    copied_pages: int = 0
    swapped_out_pages: int = 0
    swapped_in_pages: int = 0
    dropped_pages: int = 0
    """Evicted from the tree without a trace: whoever needs them again computes them again."""
