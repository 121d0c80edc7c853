"""Live tails: one reader per topic for all browsers that follow it, with the latest records decoded.

Invariants. A tail joins no group and moves no offsets. The stored records are limited in number and in bytes; records
that arrive faster than anyone reads are counted and not shown. A tail without readers ends after a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.reading import Decoder, is_end, log_ranges_of, open_reader
from highwater.connectors.kafka.records import Record, record_of
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.errors import HighwaterError
from highwater.schemas.exact_json import write_json
from highwater.streams.access import RegistryAccess
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import get_log

# The most that a person scrolls through; at a thousand events a second this is the last half second, and a filter
# checks each.
RECORDS_KEPT = 500
# The records before the end with which a tail begins, per partition.
RECORDS_BEFORE = 50
# The maximum displayed length of a value; a vector or a megabyte of text is cut, and `highwater replay` returns it in
# full.
VALUE_CHARACTERS_MAX = 4_000
# Records of eight megabytes are rare; few of them are kept.
BYTES_KEPT = 16 << 20
TAILS_MAX = 16
IDLE_SECONDS = 20.0
_BATCH, _POLL_SECONDS = 500, 0.25

_log = get_log("dashboard")


class Shown(NamedTuple):
    """A record as it is shown. `number` grows with each; `text` is the value as JSON, cut."""

    number: int
    record: Record
    timestamp: str
    key: str
    text: str

    @property
    def size_bytes(self) -> int:
        """Return its approximate size in memory."""
        return len(self.record.value or b"") + len(self.text)


class Tail:
    """The latest records of a topic, and new ones as they arrive."""

    def __init__(self, topic: str, client: Mapping[str, str], registry: RegistryAccess | None) -> None:
        self.topic = topic
        self._client = client
        self._registry = registry
        self._records: deque[Shown] = deque()
        self._bytes = 0
        self._decoder: Decoder | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._looked_at = monotonic_seconds()
        self._task: asyncio.Task[None] | None = None
        self.seen = 0
        self.problem: str | None = None

    def start(self) -> None:
        """Begin to read."""
        self._task = asyncio.create_task(self._run(), name=f"tail-{self.topic}")

    @property
    def has_ended(self) -> bool:
        """Return whether it has stopped reading."""
        return self._task is not None and self._task.done()

    def records(self) -> list[Shown]:
        """Return the stored records, the oldest first."""
        self._looked_at = monotonic_seconds()
        with self._lock:
            return list(self._records)

    def document(self, one: Shown) -> dict[str, Any]:
        """Return a record in full, as `highwater tail --json` prints it; blocks if its schema has to be fetched."""
        assert self._decoder is not None
        return self._decoder.shown(one.record)

    async def close(self) -> None:
        """Stop reading."""
        self._ending.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            decoder = self._decoder = await Decoder.of(self.topic, Registry(self._registry))
            ranges = await log_ranges_of(Admin(self._client), [self.topic])
            begin = {place: max(held.low, held.high - RECORDS_BEFORE) for place, held in ranges.items()}
            await asyncio.to_thread(self._read, decoder, begin)
        except HighwaterError as error:
            self.problem = str(error)
            _log.info("a tail ends", topic=self.topic, reason=str(error))

    def _read(self, decoder: Decoder, begin: Mapping[tuple[str, int], int]) -> None:
        reader = open_reader(self._client)
        try:
            reader.assign([TopicPartition(*place, offset) for place, offset in begin.items()])
            first = True
            while not self._ending.is_set() and monotonic_seconds() - self._looked_at < IDLE_SECONDS:
                batch = self._batch(reader)
                if first and batch:  # earlier records are sorted by arrival
                    batch.sort(key=lambda record: record.arrived_ms)
                    first = False
                self._keep(decoder, batch)
        finally:
            reader.close()

    @staticmethod
    def _batch(reader: Consumer) -> list[Record]:
        return [record_of(message) for message in reader.consume(_BATCH, _POLL_SECONDS) if not is_end(message)]

    def _keep(self, decoder: Decoder, batch: list[Record]) -> None:
        shown = [self._shown(decoder, number, record) for number, record in enumerate(batch, start=self.seen + 1)]
        with self._lock:
            self._records.extend(shown)
            self._bytes += sum(one.size_bytes for one in shown)
            while len(self._records) > RECORDS_KEPT or (self._bytes > BYTES_KEPT and len(self._records) > 1):
                self._bytes -= self._records.popleft().size_bytes
            self.seen += len(batch)

    @staticmethod
    def _shown(decoder: Decoder, number: int, record: Record) -> Shown:
        document = decoder.shown(record)
        told = document.get("value", document.get("undecodable"))
        text = write_json(told).decode()
        return Shown(
            number,
            record,
            document["timestamp"],
            document["key"] or "",
            text if len(text) <= VALUE_CHARACTERS_MAX else text[:VALUE_CHARACTERS_MAX] + " …",
        )


class Tails:
    """The open tails, by topic."""

    def __init__(self, client: Mapping[str, str], registry: RegistryAccess | None) -> None:
        self._client = client
        self._registry = registry
        self._open: dict[str, Tail] = {}

    def of(self, topic: str) -> Tail:
        """Return the tail of a topic, started if there is none yet.

        Raises:
            HighwaterError: too many are open.
        """
        self._open = {name: tail for name, tail in self._open.items() if not tail.has_ended}
        tail = self._open.get(topic)
        if tail is None:
            if len(self._open) >= TAILS_MAX:
                raise HighwaterError("too many topics are followed; close another page and try again")
            tail = Tail(topic, self._client, self._registry)
            self._open[topic] = tail
            tail.start()
        return tail

    async def close(self) -> None:
        """Stop all of them."""
        await asyncio.gather(*(tail.close() for tail in self._open.values()))
