"""Leases: who owns what for how long. A protocol of pure decisions; `connectors/postgres/leases.py` stores them.

The store decides by its own clock whether a lease is free. The owner measures from before its request, on a monotonic
clock of its own, and trusts only part of the time: so it stops before another may begin, if it runs at all. An owner
that does not run (paused, hung, cut off) finds this out when it resumes, and each of its effects is fenced by the
lease's epoch, which only grows: in PostgreSQL by the row, in the log by its readers (`streams/relay_epochs.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Renewed after this share of its time, so that one renewal may fail and the next still comes in time.
_RENEWED_AFTER = 1 / 3
# The owner trusts this share of it: the rest covers a clock that runs slower than the store's.
_TRUSTED = 0.9


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was taken; `asked_at` is when it, or its renewal, was requested, in seconds of the owner's own clock."""

    name: str
    epoch: int
    asked_at: float
    seconds: float

    def is_held(self, now: float) -> bool:
        """Return whether the owner may continue without asking."""
        return now - self.asked_at < _TRUSTED * self.seconds

    def is_due(self, now: float) -> bool:
        """Return whether it is to be renewed."""
        return now - self.asked_at >= _RENEWED_AFTER * self.seconds


class Shares(NamedTuple):
    """What a member should try to take, and what to release."""

    take: list[int]
    release: list[int]


def plan_shares(count: int, me: str, members: Collection[str], owners: Mapping[int, str]) -> Shares:
    """Plan how a member moves towards an equal share of items numbered 0 to `count` - 1.

    Nobody takes another's item: a member with more than its share releases some, and one with less takes free ones. So
    each item has an owner as soon as one member has checked, and the others replace a member that ends.

    Args:
        count: the number of shared items.
        me: the calling member.
        members: the live ones, with or without me.
        owners: number -> member, for items with an owner.
    """
    share = -(-count // len({*members, me}))
    mine = sorted(number for number, owner in owners.items() if owner == me)
    free = [number for number in range(count) if number not in owners]
    # Members that check at the same time begin at different places, so that they do not all request the same items.
    rank = sorted({*members, me}).index(me)
    begin = next((place for place, number in enumerate(free) if number >= rank * share), 0)
    return Shares([*free[begin:], *free[:begin]][: max(0, share - len(mine))], mine[share:])
