"""Distributes slots among organizations: round robin, with a cap (R2.39).

Invariant. A free slot goes to the waiting organization that holds the fewest, and on a tie to the one that has waited
longest; within an organization begun work comes first, then by order of request. No organization has more in progress
than the cap, however many slots are free, except uncapped ones; work that waits for a person does not count. So forty
jobs of one organization delay another's one by at most one job. Slots of jobs and of queries are distributed alike.
"""

from __future__ import annotations

import heapq
import sys
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple


class Waiting(NamedTuple):
    """A job or a query that waits for a slot; `is_begun`: it waited for its next attempt, which is due."""

    work_id: str
    organization_id: str
    is_begun: bool


class InProgress(NamedTuple):
    """The work of an organization in all processes: what holds a slot, and what was begun and has not ended.

    `awaiting`: the part that waits for a person; it is begun, and takes no slot.
    """

    held: int = 0
    begun: int = 0
    awaiting: int = 0


def share_out(
    waiting: Iterable[Waiting],
    in_progress: Mapping[str, InProgress],
    *,
    slots: int,
    begun_max: int,
    uncapped: Collection[str] = (),
) -> list[str]:
    """Return the ids of the work that gets the free slots, in order.

    Args:
        waiting: waiting work, longest wait first.
        in_progress: by organization.
        slots: the number of free slots.
        begun_max: how much one organization may have in progress.
        uncapped: organizations that may have any number in progress.
    """
    left = {name: max(0, begun_max - one.begun + one.awaiting) for name, one in in_progress.items()} | dict.fromkeys(
        uncapped, sys.maxsize
    )
    queues = _queues(waiting, left, begun_max)
    turns = [
        (in_progress.get(organization, InProgress()).held, place, organization)
        for place, organization in enumerate(queues)
    ]
    heapq.heapify(turns)
    chosen: list[str] = []
    while turns and len(chosen) < slots:
        held, place, organization = heapq.heappop(turns)
        chosen.append(queues[organization].popleft())
        if queues[organization]:
            heapq.heappush(turns, (held + 1, place, organization))
    return chosen


def _queues(waiting: Iterable[Waiting], left: Mapping[str, int], begun_max: int) -> dict[str, deque[str]]:
    """Return what each organization may have next, organizations in order of waiting; `left`: how much each may begin."""
    of: dict[str, list[Waiting]] = defaultdict(list)
    for one in waiting:
        of[one.organization_id].append(one)
    queues: dict[str, deque[str]] = {}
    for organization, works in of.items():
        aside = [work.work_id for work in works if work.is_begun]
        fresh = [work.work_id for work in works if not work.is_begun][: left.get(organization, begun_max)]
        if aside or fresh:
            queues[organization] = deque((*aside, *fresh))
    return queues
