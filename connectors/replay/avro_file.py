"""Writes Avro container files of a topic: records of position, time, key, headers, and the event under its own schema."""

from __future__ import annotations

from typing import Any, BinaryIO

from fastavro import parse_schema
from fastavro.write import Writer as ContainerWriter

from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.text import header_texts
from highwater.schemas.envelope import text_of

# Blocks of 256 KiB: large enough for deflate to find repetitions, small enough to be skipped.
_BLOCK_BYTES = 256 * 1024


def file_schema(event: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a file whose events have the schema `event`."""
    return {
        "type": "record",
        "name": "Replayed",
        "namespace": "highwater.replay",
        "doc": "One record of a topic; `value` is null for a tombstone and for a value that is not an event (see `undecodable`).",
        "fields": [
            {"name": "topic", "type": "string"},
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "key", "type": ["null", "string"], "default": None},
            {"name": "headers", "type": {"type": "map", "values": ["null", "string"]}},
            {"name": "value", "type": ["null", event], "default": None},
            {"name": "undecodable", "type": ["null", "string"], "default": None},
            {"name": "bytes", "type": ["null", "bytes"], "default": None},
        ],
    }


class AvroFile:
    """Writes blocks as they fill."""

    def __init__(self, file: BinaryIO, decoder: Decoder) -> None:
        schema = parse_schema(file_schema(decoder.schema))
        self._writer = ContainerWriter(file, schema, codec="deflate", sync_interval=_BLOCK_BYTES)

    def write(self, decoded: Decoded) -> None:
        """Append a batch."""
        batch, problems, rows = decoded.batch, decoded.problems, decoded.written_rows
        numbers = zip(batch.partitions.tolist(), batch.offsets.tolist(), batch.times_ms.tolist(), strict=True)
        for place, (partition, offset, arrived_ms) in enumerate(numbers):
            self._writer.write(
                {
                    "topic": batch.topic,
                    "partition": partition,
                    "offset": offset,
                    "timestamp": arrived_ms,
                    "key": text_of(batch.keys[place]),
                    "headers": header_texts(batch.headers[place]),
                    "value": rows[place],
                    "undecodable": problems.get(place),
                    "bytes": batch.values[place] if place in problems else None,
                }
            )

    def close(self) -> None:
        """Write the last block."""
        self._writer.flush()

    def abandon(self) -> None:
        """Do nothing: nothing is written without a call."""
