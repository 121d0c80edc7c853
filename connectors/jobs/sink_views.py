"""The sink of views: gathered for a window, then stored by one statement (R2.43).

Invariant: a window is a batch. Its views and the positions are one transaction, so a process that dies during a window
loses nothing and counts nothing twice. The log is the buffer; the number in Redis decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.jobs import views
from highwater.connectors.jobs.views import ViewCounts
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.jobs import VIEW_RECORDED, ViewRecorded
from highwater.streams.jobs.validation import check_jobs_event


class Prepared(NamedTuple):
    """Views by deck, and refused events."""

    counts: Counter[str]
    dead: list[DeadLetter]


class ViewsSink(Handler[ViewRecorded, Prepared]):
    """Stores one row per deck; a deck is written once per window, no matter how often it was viewed."""

    group = "views"
    topics = (VIEW_RECORDED,)
    # A full window ends early: 20,000 in a minute are 333 views a second, and 4 MB of records.
    batch_max = 20_000

    def __init__(self, shown: ViewCounts, *, window_seconds: float) -> None:
        self._shown = shown
        self.gather_seconds = window_seconds

    async def prepare(self, events: Sequence[Event[ViewRecorded]]) -> Prepared:
        """Check and count the events."""
        good, dead = divided(events, check_jobs_event)
        return Prepared(Counter(event.value["presentation_id"] for event in good), dead)

    async def apply(
        self, tx: Connection, events: Sequence[Event[ViewRecorded]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Store the counts, then raise the numbers in Redis to them.

        Before the commit, not after it: a process that dies between the two has shown views that are in the log and
        stored by its successor, which raises the numbers to the same sums.
        """
        if prepared.counts:
            await self._shown.reach(await views.store(tx, prepared.counts))
        return prepared.dead
