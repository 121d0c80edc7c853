"""A log in memory that the real searches run over: only the three questions to the broker are answered here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from highwater.connectors.kafka.finding import Finder
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.records import Record
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS


class MemoryLog(Finder):
    """Records by topic and partition; times are given by the test."""

    def __init__(self) -> None:
        self._codec = Codec({topic: number for number, topic in enumerate(TOPICS, start=1)})
        self._log: dict[tuple[str, int], list[Record]] = {}

    def add(
        self,
        topic: str,
        key: str | None,
        at_ms: int,
        value: Mapping[str, Any],
        cause: Position | None = None,
        **place: int,
    ) -> Position:
        """Append an event; a partition is given where the key does not say it."""
        partition = place.get("partition")
        if partition is None:
            partition = murmur2_partition((key or "").encode(), TOPICS[topic].partitions)
        records = self._log.setdefault((topic, partition), [])
        headers = [] if cause is None else [("ce_causedby", str(cause).encode())]
        data = self._codec.encode(topic, value)
        record = Record(topic, partition, len(records), at_ms, None if key is None else key.encode(), data, headers)
        records.append(record)
        return record.position

    def close(self) -> None:
        """Nothing is held."""

    def _ends(self, place: tuple[str, int]) -> tuple[int, int]:
        return 0, len(self._log.get(place, []))

    def _offset_at(self, place: tuple[str, int], from_ms: int) -> int | None:
        return next((record.offset for record in self._log.get(place, []) if record.arrived_ms >= from_ms), None)

    def _records(self, place: tuple[str, int], begin: int, end: int) -> Iterator[Record]:
        yield from self._log.get(place, [])[begin:end]
