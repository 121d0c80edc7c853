"""The sink of usage: the totals of a period as they are told at the quarters of an hour (R2.37).

Law: totals are absolute, and what is stored is only ever raised. An event that comes again never doubles, and one that says less
(of a table that began anew) never lowers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from highwater.connectors.jobs.usage import store_flushed
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.postgres.pool import Connection
from highwater.streams.jobs.usage import check_flushed

FLUSHED = "jobs.usage-flushed"


class Prepared(NamedTuple):
    """Valid events, and what is refused."""

    events: list[Event]
    dead: list[DeadLetter]


class UsageSink:
    """One statement a batch."""

    group = "usage"
    topics: tuple[str, ...] = (FLUSHED,)
    # Rows of 100 bytes: all organizations are told at once, four times an hour, and no one waits for it.
    batch_max = 5_000

    async def prepare(self, events: Sequence[Event]) -> Prepared:
        """Check the events."""
        return Prepared(*divided(events, _check))

    async def apply(self, tx: Connection, events: Sequence[Event], prepared: Prepared) -> Sequence[DeadLetter]:
        """Raise the stored totals."""
        await store_flushed(tx, [event.value for event in prepared.events])
        return prepared.dead

    async def settle(self, prepared: Prepared) -> None:
        """Nothing is held."""


def _check(_topic: str, value: Mapping[str, Any]) -> None:
    check_flushed(value)
