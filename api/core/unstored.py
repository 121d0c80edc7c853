"""What an accepted id stands for before its sink has stored it: the events that create it, read from the log.

Invariant: an id is unknown only if neither PostgreSQL nor a record between the position of its sink and the end of the
log has it. If the log is not read that far within `SECONDS_MAX`, the answer is 503 with `Retry-After`, never a false 404;
what was read is kept, so a repeated request continues. Callers share one read of each topic, and while the sink has
processed everything no record is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import asyncpg

from highwater.api.core.freshness import NotYetError, group_of
from highwater.api.core.parts import Part
from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.reading import Place, read_record
from highwater.connectors.kafka.records import Event, Record
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.kafka.unread import UnreadIds, open_unread_reader
from highwater.connectors.postgres.pool import READ_SECONDS_MAX, fetched
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import monotonic_seconds

# In this time some 300,000 records are read on an idle machine.
SECONDS_MAX = READ_SECONDS_MAX

T = TypeVar("T")
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


@dataclass(frozen=True)
class Naming:
    """The events of a topic that name resources.

    `id_of` returns the id that an event names, None if it names none; `check` raises an `InvalidEventError` for an event
    that its sink will refuse.
    """

    topic: str
    id_of: Callable[[Any], str | None]
    check: Callable[[str, Any], None]


@dataclass(frozen=True)
class Creation(Naming, Generic[T]):
    """The events that create resources; `value` is one as it is shown until its sink has stored it."""

    value: Callable[[Pool, Event[Any]], Awaitable[T]]


class _Unread:
    """The unread part of one topic. Those who ask while it is read share the next read, which begins after they asked."""

    def __init__(self, ids: UnreadIds, measure: Callable[[], Awaitable[dict[Place, LogRange]]]) -> None:
        self.ids = ids
        self._measure = measure
        self._current: asyncio.Task[Any] | None = None
        self._next: asyncio.Task[tuple[dict[Place, LogRange], bool]] | None = None

    async def read(
        self, read: Callable[[dict[Place, LogRange]], Awaitable[bool]]
    ) -> tuple[dict[Place, LogRange], bool]:
        """Return the unread part, and whether all of it was read."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._current, read), name="unstored")
            self._next.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # perhaps nobody waits any more
        return await asyncio.shield(self._next)

    async def _read_after(
        self, before: asyncio.Task[Any] | None, read: Callable[[dict[Place, LogRange]], Awaitable[bool]]
    ) -> tuple[dict[Place, LogRange], bool]:
        if before is not None:
            await asyncio.wait({before})
        self._current, self._next = self._next, None
        unread = await self._measure()
        return unread, not unread or await read(unread)


class Unstored:
    """Finds the events behind ids that PostgreSQL does not have."""

    def __init__(
        self,
        client: Mapping[str, str],
        admin: Admin,
        database: Part[Pool],
        kafka: Part[AsyncProducer],
        codec: Part[Codec],
        registry: Registry,
    ) -> None:
        self._client = client
        self._admin = admin
        self._database = database
        self._kafka = kafka
        self._codec = codec
        self._registry = registry
        # One at a time: each read takes a consumer, and its records take the processor.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="unstored")
        self._unread: dict[str, _Unread] = {}

    async def event(self, naming: Naming, identifier: str) -> Event[Any] | None:
        """Return the first event that names an id and that its sink has not processed; None if there is none.

        Raises:
            NotYetError: the log was not read to its end in time.
            UnavailableError: PostgreSQL or Kafka is unavailable.
        """
        self._kafka.require()
        if naming.topic not in self._unread:
            ids = UnreadIds(naming.topic, lambda record: self._id_in(record, naming))
            self._unread[naming.topic] = _Unread(ids, lambda: self._measure(naming.topic))
        topic = self._unread[naming.topic]
        try:
            async with asyncio.timeout(SECONDS_MAX):
                unread, is_whole = await topic.read(lambda spans: self._run(self._read, topic.ids, spans))
                if unread:
                    found: Event[Any] | None = await self._run(self._first, naming, identifier, topic.ids, unread)
                    if found is not None:
                        return found
        except TimeoutError:
            is_whole = False
        if not is_whole:
            raise NotYetError(
                f"{group_of(naming.topic)} is behind, and the rest of {naming.topic} could not be read within"
                f" {SECONDS_MAX:g} s: whether {identifier} exists is unknown. Try again"
            )
        return None

    def close(self) -> None:
        """Begin no further read."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _measure(self, topic: str) -> dict[Place, LogRange]:
        """Return the partitions with unread records: from the position of the sink to the end of the log."""
        rows = await fetched(
            self._database.require(), QUERIES["positions_of"], group_of(topic), seconds_max=SECONDS_MAX
        )
        reached = {(row["topic"], row["partition"]): row["next"] for row in rows}
        ends = await self._admin.log_ends((topic, partition) for partition in range(TOPICS[topic].partitions))
        return {place: LogRange(low, end) for place, end in ends.items() if (low := reached.get(place, 0)) < end}

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _read(self, ids: UnreadIds, unread: dict[Place, LogRange]) -> bool:
        return ids.read(self._client, unread, monotonic_seconds() + SECONDS_MAX)

    def _first(
        self, naming: Naming, identifier: str, ids: UnreadIds, unread: dict[Place, LogRange]
    ) -> Event[Any] | None:
        for position in ids.positions(identifier, unread):
            with closing(open_unread_reader(self._client)) as reader:
                record = read_record(reader, position)
            event = None if record is None else self._decoded(record)
            if record is None or event is None or naming.id_of(event) != identifier:
                continue
            with suppress(InvalidEventError):
                naming.check(naming.topic, event)
                return Event(record, event)
        return None

    def _id_in(self, record: Record, naming: Naming) -> str | None:
        event = self._decoded(record)
        return None if event is None else naming.id_of(event)

    def _decoded(self, record: Record) -> dict[str, Any] | None:
        """Return the event in a record; None if the bytes are not an event of the topic."""
        codec = self._codec.require()
        try:
            try:
                return codec.decode(record.topic, record.value)
            except UnknownSchemaError as error:  # of an API process of another release
                codec.teach(error.schema_id, asyncio.run(self._registry.text_of(error.schema_id)))
                return codec.decode(record.topic, record.value)
        except (InvalidEventError, UnknownSchemaError):
            return None
