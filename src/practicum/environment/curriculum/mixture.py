"""Which domain a slot belongs to: fixed shares, kept over every stretch of slots.

The one thing to know: the schedule is a fixed sequence, not a lottery. After any number of slots
each domain has had its share to within one slot (the quota method of Balinski and Young), so in any
window it is off by less than two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from practicum.errors import UsageError


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


def with_floor(shares: Mapping[str, float], floor: float) -> dict[str, Fraction]:
    """Normalise to a sum of 1 with no share below `floor`; the others give way in proportion.

    Raises UsageError for shares that are not positive or floors that add up to more than 1.
    """
    bad = [domain for domain, share in shares.items() if not 0 < share < math.inf]
    if bad or not shares:
        raise UsageError(
            f"domain shares must be above 0 and finite, and at least one: {dict(shares)}"
        )
    least = Fraction(floor)
    given = {domain: Fraction(shares[domain]) for domain in sorted(shares)}
    if least * len(given) > 1:
        raise UsageError(f"a floor of {floor} for each of {len(shares)} domains exceeds 1")
    result = _scaled(given, Fraction(1))
    # Raising some to the floor lowers the others, which may put one of those below it in turn.
    while any(share < least for share in result.values()):
        raised = {domain for domain, share in result.items() if share <= least}
        rest = {domain: share for domain, share in given.items() if domain not in raised}
        result = dict.fromkeys(given, least) | _scaled(rest, 1 - least * len(raised))
    return result


def _scaled(shares: Mapping[str, Fraction], total: Fraction) -> dict[str, Fraction]:
    factor = total / sum(shares.values(), Fraction(0)) if shares else total
    return {domain: share * factor for domain, share in shares.items()}
