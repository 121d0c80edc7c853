"""Leases: who owns what for how long. A protocol of pure decisions; `connectors/postgres/leases.py` asks and stores.

The store decides by its own clock whether a lease is free. The owner measures from the moment before it asked, on a clock of its
own that only measures, and trusts a part of the time: so it stops before another may begin, if it runs at all. An owner that does
not run (stopped, hung, cut off) finds that out when it goes on, and each of its effects is fenced by the lease's epoch, which
only grows: in PostgreSQL by the row, in the log by its readers (`streams/relay_epochs.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Renewed after this share of its time, so that one renewal may fail and the next still comes in time.
_RENEWED_AFTER = 1 / 3
# The owner trusts this share of it: what is left covers a clock that runs slower than the store's.
_TRUSTED = 0.9


@dataclass(frozen=True, slots=True)
class Lease:
    """One that was taken; `asked_at` is when it was asked for, or for its renewal, in seconds of the owner's own clock."""

    name: str
    epoch: int
    asked_at: float
    seconds: float

    def is_held(self, now: float) -> bool:
        """Whether the owner may go on without asking."""
        return now - self.asked_at < _TRUSTED * self.seconds

    def is_due(self, now: float) -> bool:
        """Whether it is to be renewed."""
        return now - self.asked_at >= _RENEWED_AFTER * self.seconds


class Shares(NamedTuple):
    """What a member is to try to take, and to let go of."""

    take: list[int]
    release: list[int]


def plan_shares(count: int, me: str, members: Collection[str], owners: Mapping[int, str]) -> Shares:
    """How a member comes nearer to an equal share of what is numbered 0 to `count` - 1.

    Nobody takes what is another's: who has more than a share lets go, and who has less takes what is free. So each number is
    somebody's as soon as one member has looked, and a member that ends is made up for by the others.

    Args:
        count: of what is shared.
        me: the member that asks.
        members: those that live, with or without me.
        owners: number -> member, of what is somebody's now.
    """
    share = -(-count // len({*members, me}))
    mine = sorted(number for number, owner in owners.items() if owner == me)
    free = [number for number in range(count) if number not in owners]
    # Members that look at the same moment begin at different places, so that they do not all ask for the same.
    rank = sorted({*members, me}).index(me)
    begin = next((place for place, number in enumerate(free) if number >= rank * share), 0)
    return Shares([*free[begin:], *free[:begin]][: max(0, share - len(mine))], mine[share:])
