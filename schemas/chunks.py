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
    """Chunks of a source changed in one way. One event covers the chunks of a transaction; unchanged chunks are not listed."""

    ns: str
    slot: str
    source_id: str
    kind: str
    ingest_id: str | None
    changes: list[ChangedChunk]
    at: int


class ChunkSubmitted(TypedDict):
    """A producer submitted a chunk of a source."""

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
    opens: bool


class EmbeddingRequested(TypedDict):
    """Chunks of a source need vectors."""

    ns: str
    slot: str
    source_id: str
    priority: str
    chunks: int
    requested_at: int


class IngestDecided(TypedDict):
    """The decision that an ingest of a source has ended, and whether chunks that it did not submit are orphans."""

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
    """All chunks of a source have been submitted."""

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
    """Progress of the ingest of a source, in absolute numbers: one event per source and batch."""

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
    """Result of an ingest over all its sources."""

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
    """A namespace became hot or stopped being hot. Once a day also published for namespaces whose search rate changed."""

    ns: str
    is_hot: bool
    queries_per_day: float
    decided_at: int


class QueriesServed(TypedDict):
    """Number of searches that one process answered in a namespace since its previous event."""

    ns: str
    queries: int
    since: int
    at: int


class SweepRequested(TypedDict):
    """Once an hour: orphans whose grace period has ended, and cold chunks, are to be found."""

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
