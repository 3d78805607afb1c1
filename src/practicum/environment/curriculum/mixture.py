"""Which domain a slot belongs to: fixed shares, kept over every stretch of slots.

The one thing to know: the schedule is a fixed sequence, not a lottery. After any number of slots
each domain has had its share to within one slot (the quota method of Balinski and Young), so in any
window it is off by less than two.
"""

from __future__ import annotations

from collections.abc import Mapping

from practicum.config import with_floor


class Mixture:
    """Domain shares with floors, and the schedule that keeps them.

    Example:
        >>> mixture = Mixture({"addition": 3.0, "reversal": 1.0})
        >>> [mixture.domain_of(slot) for slot in range(4)]
        ['addition', 'addition', 'reversal', 'addition']
    """

    def __init__(self, shares: Mapping[str, float], floor: float = 0.0) -> None:
        self.shares = with_floor(shares, floor)
        """Domain -> exact share, summing to 1; sorted, so that a recipe's order is no matter."""
        self._order: list[str] = []
        self._counts = dict.fromkeys(self.shares, 0)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.shares)

    def domain_of(self, slot: int) -> str:
        """The domain of this slot: a function of the shares and the slot alone."""
        while len(self._order) <= slot:
            domain = self._next()
            self._order.append(domain)
            self._counts[domain] += 1
        return self._order[slot]

    def _next(self) -> str:
        num_slots = len(self._order) + 1
        # Who is below its share of all slots so far may have the next one; of those, the one whose
        # slot falls due first. Counts sum to one less than the shares do, so somebody always is.
        due = [
            domain
            for domain, share in self.shares.items()
            if self._counts[domain] < share * num_slots
        ]
        return min(due, key=lambda domain: (self._counts[domain] + 1) / self.shares[domain])
