"""From records to what a handler stores: they are decoded, and prepared by the handler, before their transaction begins.

A batch may be prepared while the one before it is stored (`Handler.prepares_ahead`): PostgreSQL and this process then work side
by side. Invariant: what was prepared ahead is used for exactly the records it was made of, or thrown away. It holds nothing that
is not read again from the stored position: after a kill, a rebalance, a stop or a batch that failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from highwater.connectors.kafka.handler import Handler, Surroundings
from highwater.connectors.kafka.records import DeadLetter, Event, Record
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.streams.telemetry import get_log

# Fewer records of a topic are read one by one: the array operations take 0.3 ms for one record as for fifty.
_AT_ONCE_MIN = 64


class Ready(NamedTuple):
    """A batch before its transaction: events and the handler's own form of them (None: no events), and what is refused."""

    records: Sequence[Record]
    events: Sequence[Event[Any]]
    dead: Sequence[DeadLetter]
    prepared: Any


class Ahead(NamedTuple):
    """Records that were read ahead, in which assignment of the consumer, and what was prepared of them, if that succeeded."""

    records: list[Record]
    assignments: int
    ready: Ready | None


class Preparation:
    """Decodes and prepares the batches of one handler."""

    def __init__(self, handler: Handler[Any, Any], around: Surroundings) -> None:
        self._handler = handler
        self._around = around
        self._log = get_log(handler.group)

    async def make(self, records: Sequence[Record]) -> Ready:
        """Decode and prepare a batch; what the handler's `prepare` raises is raised."""
        events, dead = await self._decode(records)
        return Ready(records, events, dead, await self._handler.prepare(events) if events else None)

    async def make_ahead(self, records: Sequence[Record]) -> Ready | None:
        """The same for records whose turn has not come; None where it failed, since at their turn it is tried again and told."""
        try:
            return await self.make(records)
        except Exception as error:  # noqa: BLE001 (at their turn it is met again, and dealt with)
            self._log.debug("not_prepared_ahead", events=len(records), reason=repr(error)[:300])
            return None

    async def _decode(self, records: Sequence[Record]) -> tuple[list[Event[Any]], list[DeadLetter]]:
        """A large batch in a thread, since the loop is what PostgreSQL waits for, which stores the batch before."""
        if len(records) < _AT_ONCE_MIN:
            found: list[Event[Any] | None] = [None] * len(records)
        else:
            found = await asyncio.to_thread(self._decoded_at_once, records)
        events = [event for event in found if event is not None]
        if len(events) == len(records):
            return events, []
        events.clear()
        dead: list[DeadLetter] = []
        for record, event in zip(records, found, strict=True):
            try:
                events.append(Event(record, await self._decoded(record)) if event is None else event)
            except InvalidEventError as error:
                dead.append(DeadLetter(record, error.reason, str(error)))
            except UnknownSchemaError as error:
                dead.append(DeadLetter(record, "unknown_schema_id", str(error)))
        return events, dead

    def _decoded_at_once(self, records: Sequence[Record]) -> list[Event[Any] | None]:
        """The event in each record that could be read with the others of its topic."""
        found: list[Event[Any] | None] = [None] * len(records)
        for topic in self._handler.topics:
            places = [i for i, record in enumerate(records) if record.topic == topic]
            if len(places) < _AT_ONCE_MIN:
                continue
            values = self._around.codec.decode_many(topic, [records[i].value for i in places])
            for i, value in zip(places, values, strict=True):
                if value is not None:
                    found[i] = Event(records[i], value)
        return found

    async def _decoded(self, record: Record) -> dict[str, Any]:
        codec = self._around.codec
        if record.value is None and record.topic in self._handler.tombstones:
            return {}
        try:
            return codec.decode(record.topic, record.value)
        except UnknownSchemaError as error:
            codec.teach(error.schema_id, await self._around.registry.text_of(error.schema_id))
            return codec.decode(record.topic, record.value)
