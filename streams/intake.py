"""From a record's bytes to an event, or to the dead-letter topic.

Invariant: a bad record never stops a stream and is never lost. Original key, bytes and headers go to `<topic>.dlq` with
origin and reason, and the stream continues when the broker has them, however many follow: an agent holds the tables and
the clock of all keys of its partitions, so a stop would affect all of them. A long run is reported with the topic and
the command that lists it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import Headers, missing_attributes
from highwater.schemas.errors import InvalidEventError, UnavailableError, UnknownSchemaError
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from highwater.streams.retry import UNAVAILABLE
from highwater.streams.telemetry import EVENTS_CONSUMED, EVENTS_DEAD_LETTERED, get_log

# With this many dead letters of a partition without a good event between them, the producer is broken, not the event.
DEAD_LETTERS_REPORTED = 100
# A header is for reading; a decoder's message may quote the whole event.
_DETAIL_CHARACTERS_MAX = 500

Learn = Callable[[int], Awaitable[None]]
_log = get_log("intake")


class Send(Protocol):
    """Pass a record to the producer; the inner awaitable is the broker's acknowledgement (partition, offset)."""

    async def __call__(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> Awaitable[Any]:
        """Send one record."""


class Record(Protocol):
    """The fields that the intake reads of a consumed record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any
    timestamp: float | None  # the broker's time, in seconds


def appended_ms(record: Record) -> int | None:
    """Return the broker's time of a record; None without a broker."""
    return None if record.timestamp is None else round(record.timestamp * 1000)


def position_of(record: Record) -> Position:
    """Return the record's position in the log."""
    return Position(record.topic, record.partition, record.offset)


class Intake:
    """Decodes the records of one agent."""

    def __init__(self, group: str, codec: Codec, learn: Learn, send: Send) -> None:
        self._group = group
        self._codec = codec
        self._learn = learn
        self._send = send
        self._in_a_row: Counter[tuple[str, int]] = Counter()

    @property
    def degraded(self) -> dict[str, str]:
        """Return the partitions with only bad events: name -> what to do."""
        return {
            f"{topic}/{partition}": (
                f"the last {count} events could not be processed and were dead-lettered; see `highwater dlq list {topic}` "
                "and stop the producer that publishes them"
            )
            for (topic, partition), count in self._in_a_row.items()
            if count >= DEAD_LETTERS_REPORTED
        }

    async def decode(self, record: Record) -> Mapping[str, Any]:
        """Return the event in a record. An unknown schema id is requested from the registry, waiting while it is
        unavailable.

        Raises:
            InvalidEventError: the bytes are not an event of this topic.
            UnknownSchemaError: the registry does not know the id either.
        """
        try:
            return self._codec.decode(record.topic, record.value)
        except UnknownSchemaError as unknown:
            attempt = 0
            while True:
                attempt += 1
                try:
                    await self._learn(unknown.schema_id)
                    break
                except UnavailableError as error:
                    wait_ms = UNAVAILABLE.wait_ms(attempt) or 0
                    _log.warning("registry_unavailable", schema_id=unknown.schema_id, error=str(error), wait_ms=wait_ms)
                    await asyncio.sleep(wait_ms / 1000)
            return self._codec.decode(record.topic, record.value)

    def accept(self, record: Record) -> None:
        """Note that the event of a record was processed."""
        self.accept_many(record.topic, record.partition, 1)

    def accept_many(self, topic: str, partition: int, count: int) -> None:
        """Note that this many events of a partition were processed."""
        self._in_a_row.pop((topic, partition), None)
        EVENTS_CONSUMED.labels(self._group, topic).inc(count)

    async def dead_letter(self, record: Record, error: InvalidEventError | UnknownSchemaError) -> None:
        """Dead-letter a record and wait until the broker has it."""
        reason = error.reason if isinstance(error, InvalidEventError) else "unknown_schema"
        # An existing dlq_* header is replaced.
        headers = [(name, value) for name, value in header_list(record.headers) if not name.startswith("dlq_")]
        topic, origin = TOPICS[record.topic].dead_letter, position_of(record)
        headers += missing_attributes(headers, origin, group=self._group, topic=topic, arrived_ms=appended_ms(record))
        headers += [
            ("dlq_reason", reason.encode()),
            ("dlq_detail", str(error)[:_DETAIL_CHARACTERS_MAX].encode("utf-8", "replace")),
            ("dlq_origin", str(origin).encode()),
            ("dlq_group", self._group.encode()),
        ]
        await (await self._send(topic, key=record.key, value=record.value, headers=headers))
        EVENTS_CONSUMED.labels(self._group, record.topic).inc()
        EVENTS_DEAD_LETTERED.labels(self._group, record.topic, reason).inc()
        _log.warning("dead_lettered", origin=str(origin), reason=reason, detail=str(error))
        self._in_a_row[record.topic, record.partition] += 1
        if self._in_a_row[record.topic, record.partition] == DEAD_LETTERS_REPORTED:
            _log.error("only_bad_events", group=self._group, reason=self.degraded[f"{record.topic}/{record.partition}"])


def header_list(headers: Any) -> Headers:
    """Return headers as a list: a consumed record has a list, a tuple, a mapping or nothing."""
    return list(headers.items() if isinstance(headers, Mapping) else headers or ())
