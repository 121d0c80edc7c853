"""Typed records of the chunks events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class ChangedChunk(TypedDict):
    """One of them."""

    chunk_no: int
    old_hash: str | None
    new_hash: str | None


class ChunkChanged(TypedDict):
    """Chunks of a source changed in one way, those of one transaction together; what is unchanged is not told."""

    ns: str
    slot: str
    source_id: str
    kind: str
    ingest_id: str | None
    changes: list[ChangedChunk]
    at: int


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
    lasts: bool


class EmbeddingRequested(TypedDict):
    """Chunks of a source wait for their vectors (R3.13 to R3.15)."""

    ns: str
    slot: str
    source_id: str
    priority: str
    chunks: int
    requested_at: int


class IngestDecided(TypedDict):
    """An ingest of a source has come to its end, and what that means for chunks that it did not name (R3.20)."""

    ingest_id: str
    ns: str
    slot: str
    source_id: str
    outcome: str
    marks_orphans: bool
    revision: int
    seen: int
    failed: int
    inserted: int
    updated: int
    unchanged: int
    expected: int | None
    full: bool
    force: bool
    truncated: bool
    is_superseded: bool
    decided_at: int


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
    force: bool
    window: str | None


class IngestProgressed(TypedDict):
    """How far the ingest of a source is, absolute: one event a source and batch."""

    ingest_id: str
    ns: str
    slot: str
    source_id: str
    revision: int
    seen: int
    failed: int
    inserted: int
    updated: int
    unchanged: int
    expected: int | None
    full: bool
    force: bool
    truncated: bool
    is_superseded: bool
    at: int


class IngestReported(TypedDict):
    """What an ingest did, over all its sources (R3.24)."""

    ingest_id: str
    ns: str
    sources: int
    sources_done: int
    inserted: int
    updated: int
    unchanged: int
    failures: int
    orphaned: int
    outcomes: dict[str, int]
    window: str | None
    at: int


class NamespaceRated(TypedDict):
    """A namespace became hot, or is so no longer (R3.21); once a day also one that is asked more or less."""

    ns: str
    is_hot: bool
    queries_per_day: float
    decided_at: int


class QueriesServed(TypedDict):
    """Searches that one process answered in a namespace since it told last (R3.21)."""

    ns: str
    queries: int
    since: int
    at: int


class SweepRequested(TypedDict):
    """Ends of grace and cold chunks are to be looked for (R3.20, R3.23)."""

    sweep: str
    now: int


CHUNK_SUBMITTED: Final = TopicName[ChunkSubmitted]("chunks.chunk-submitted")
INGEST_FINISHED: Final = TopicName[IngestFinished]("chunks.ingest-finished")
INGEST_PROGRESSED: Final = TopicName[IngestProgressed]("chunks.ingest-progressed")
INGEST_DECIDED: Final = TopicName[IngestDecided]("chunks.ingest-decided")
INGEST_REPORTED: Final = TopicName[IngestReported]("chunks.ingest-reported")
CHUNK_CHANGED: Final = TopicName[ChunkChanged]("chunks.chunk-changed")
EMBEDDING_REQUESTED: Final = TopicName[EmbeddingRequested]("chunks.embedding-requested")
QUERIES_SERVED: Final = TopicName[QueriesServed]("chunks.queries-served")
NAMESPACE_RATED: Final = TopicName[NamespaceRated]("chunks.namespace-rated")
SWEEP_REQUESTED: Final = TopicName[SweepRequested]("chunks.sweep-requested")
