"""From where on a sequence's pages are still its own, where pages are finished block by block.

The one thing to know: coded pages are coded once their block of 128 positions is complete, and only
then does nobody need more than the codes. So what others find are whole blocks, and what a
sequence reads exactly goes along with it when it is preempted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blocks:
    """The default is that of exact pages: every token is finished at once."""

    size: int = 1
    """Positions that are finished together"""
    recent: int = 0
    """Positions before an incomplete block that are read exactly too; a multiple of `size`"""

    def reusable(self, num_tokens: int) -> int:
        """How many of the first tokens that somebody computed others can go on from."""
        return 0 if self.recent else num_tokens // self.size * self.size

    def finished(self, num_computed: int) -> int:
        """Before which position the sequence that computed them reads nothing exactly."""
        return max(0, num_computed // self.size * self.size - self.recent)
