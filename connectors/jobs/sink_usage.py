"""The sink of usage: the totals of a period as they are published every quarter of an hour (R2.37).

Invariant: totals are absolute, and stored ones only ever increase. A repeated event never duplicates, and a lower one
(from a table that was rebuilt) never decreases them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.connectors.jobs.usage import store_flushed
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.jobs import USAGE_FLUSHED, UsageFlushed
from highwater.streams.jobs.usage import check_flushed


class Prepared(NamedTuple):
    """Valid events, and refused ones."""

    events: list[Event[UsageFlushed]]
    dead: list[DeadLetter]


class UsageSink(Handler[UsageFlushed, Prepared]):
    """One statement per batch."""

    group = "usage"
    topics = (USAGE_FLUSHED,)
    # Rows of 100 bytes: all organizations are published at once, four times an hour, and nothing waits for it.
    batch_max = 5_000

    async def prepare(self, events: Sequence[Event[UsageFlushed]]) -> Prepared:
        """Check the events."""
        return Prepared(*divided(events, _check))

    async def apply(
        self, tx: Connection, events: Sequence[Event[UsageFlushed]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Increase the stored totals."""
        await store_flushed(tx, [event.value for event in prepared.events])
        return prepared.dead


def _check(_topic: str, value: UsageFlushed) -> None:
    check_flushed(value)
