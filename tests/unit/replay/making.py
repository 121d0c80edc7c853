"""Shared parts of the tests of replay: batches of a topic made without a broker."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fastavro import schemaless_writer

from highwater.connectors.replay.decoding import Decoder
from highwater.connectors.replay.reading import Batch
from highwater.connectors.replay.subject import Subject
from highwater.schemas.avro_files import schema_text
from highwater.schemas.readable import parsed_for_writing
from highwater.schemas.topics import TOPICS

TOPIC = "feeds.insight-ingested"
OWN_ID = 7


def own_text(topic: str = TOPIC) -> str:
    """The catalogue's schema of a topic."""
    return schema_text(TOPICS[topic].schema)


def decoder_of(topic: str = TOPIC, versions: Mapping[int, str] | None = None) -> Decoder:
    """A decoder that knows these versions and no registry."""
    return Decoder(Subject(TOPICS[topic], versions or {OWN_ID: own_text(topic)}), at_once_min=1)


def encoded(event: Mapping[str, Any], text: str, schema_id: int = OWN_ID) -> bytes:
    """An event in the wire format."""
    buffer = io.BytesIO()
    buffer.write(struct.pack(">bI", 0, schema_id))
    schemaless_writer(buffer, parsed_for_writing(text), event)
    return buffer.getvalue()


def changed(text: str, **fields: Any) -> str:
    """A schema with further fields, each given by its type and default; None takes a field away."""
    schema = json.loads(text)
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in fields]
    schema["fields"] += [{"name": name, **more} for name, more in fields.items() if more is not None]
    return json.dumps(schema)


def batch(
    values: Sequence[bytes | None],
    *,
    topic: str = TOPIC,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Any] | None = None,
    times_ms: Sequence[int] | None = None,
) -> Batch:
    """Records of partition 3, offsets from 100."""
    count = len(values)
    return Batch(
        topic,
        np.full(count, 3, np.int32),
        np.arange(100, 100 + count, dtype=np.int64),
        np.array(times_ms if times_ms is not None else [1_700_000_000_000 + i for i in range(count)], np.int64),
        list(keys if keys is not None else [b"k"] * count),
        list(headers if headers is not None else [None] * count),
        list(values),
    )


def insight(**fields: Any) -> dict[str, Any]:
    """An insight as the codec takes it."""
    return {"insight_id": "i", "channel_id": "c", "ts": 1_600_000_000_123, **fields}
