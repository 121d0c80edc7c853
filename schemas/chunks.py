"""Typed records of the chunks events, written by `python -m schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from typing import TypedDict


class ChunkSubmitted(TypedDict):
    """A chunk of a source (R3.1)."""

    ingest_id: str
    ns: str
    slot: str
    source_id: str
    chunk_no: int
    content: str
    title: str | None
    url: str | None
    embedding: bytes | None
    published_at: int | None


class IngestFinished(TypedDict):
    """All chunks of a source were submitted (R3.19, R3.20)."""

    ingest_id: str
    ns: str
    slot: str
    source_id: str
    full: bool
    expected_count: int
    truncated: bool
    ts: int
