"""The answers of the routes of chunks, for the OpenAPI document.

Invariant: no answer has other members. An optional member is `NotRequired`; a member without a value is `None`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from highwater.api.chunks.reranking import Ranking
from highwater.api.core.answers import Time
from highwater.streams.chunks.scoring import Mode

# `running` until every source has ended; then the status of the worst source.
IngestStatus: TypeAlias = Literal[
    "running", "complete", "partial", "truncated", "superseded", "empty", "abandoned", "failed"
]
Window: TypeAlias = dict[str, Any]


class IngestedSource(TypedDict):
    """The outcome of an ingest for a source."""

    ns: str
    slot: str
    source_id: str
    status: IngestStatus
    reason: str | None
    full: bool | None
    force: bool | None
    truncated: bool | None
    expected_count: int | None
    inserted: int
    updated: int
    unchanged: int
    failures: int
    orphaned: int
    window: Window | None
    created_at: Time
    updated_at: Time
    finished_at: Time | None
    position: str | None


class RefusedChunk(TypedDict):
    """A chunk that was refused."""

    ns: str
    slot: str
    source_id: str
    chunk_no: int
    reason: str
    detail: str
    position: str
    failed_at: Time


class Ingest(TypedDict):
    """The outcome of an ingest. `received` is the sum of the four counters after it; `statuses`: number of sources by outcome."""

    ingest_id: str
    status: IngestStatus
    reason: str | None
    received: int
    inserted: int
    updated: int
    unchanged: int
    failures: int
    orphaned: int
    window: Window | None
    created_at: Time
    updated_at: Time
    finished_at: Time | None
    sources_total: int
    sources_done: int
    statuses: dict[str, int]
    sources: list[IngestedSource]
    next_cursor: str | None
    failed: list[RefusedChunk]


class NeighbourChunk(TypedDict):
    """A chunk beside a result in its source."""

    chunk_no: int
    title: str | None
    content: str


class FoundChunk(TypedDict):
    """A result with its scores; `before` and `after` are present if neighbours were requested.

    `valid_until`: when the text was replaced or removed; null for a current text. `rerank_score`: by the reranker,
    0 to 1.
    """

    ns: str
    slot: str
    source_id: str
    chunk_no: int
    title: str | None
    url: str | None
    content: str
    published_at: Time | None
    created_at: Time
    updated_at: Time
    similarity: float
    cosine: float | None
    text_score: float | None
    decay: float
    age_days: float
    temperature: Literal["hot", "warm", "cold"]
    final: float
    stale: bool
    position: str
    valid_until: Time | None
    rerank_score: float | None
    before: NotRequired[list[NeighbourChunk]]
    after: NotRequired[list[NeighbourChunk]]


class FoundChunks(TypedDict):
    """The results of a search, the best first. `compared_by`: a model, `sent` or `words`; null: the search had no question.

    `texts`: `as_of` if the texts are those that were stored at that time, `now` if they are the current ones. `without_vector`:
    how many chunks have no vector yet and are found by words alone, 10,000 at most. `required`, `excluded`: what each result has,
    and what none has, as the question says.
    """

    ns: str
    as_of: Time
    texts: Literal["as_of", "now"]
    mode: Mode
    compared_by: str | None
    ranking: Ranking
    complete: bool
    exact: bool
    cold_hidden: int
    without_vector: int
    required: list[str]
    excluded: list[str]
    results: list[FoundChunk]


class NamespacePassport(TypedDict):
    """The settings of a namespace; ages in days."""

    half_life_days: float
    ttl_days: float
    ttl_mode: Literal["filter", "zero_weight"]
    alpha: float
    beta: float
    hot_days: float
    hot_queries_per_day: float
    removal: Literal["soft", "hard"]
    grace_days: float
    archives_cold: bool
    is_open: bool
    text_share: float


class ModelSwitch(TypedDict):
    """A change to another model: searches compare the present vectors until all of its own are made. `due_at` is an estimate."""

    embedding_model: str
    made: int
    due_at: Time | None


class NamespaceLifecycle(TypedDict):
    """Number of chunks of a namespace by age. `switch`: null unless its embedding model is being changed."""

    ns: str
    as_of: Time
    chunks: int
    sources: int
    hot: int
    warm: int
    cold: int
    without_embedding: int
    stale_embedding: int
    to_delete: int
    archived: int
    is_hot: bool
    queries_per_day: float
    rated_at: Time | None
    dimensions: int | None
    embedding_model: str | None
    switch: ModelSwitch | None
    passport: NamespacePassport


class NamespaceLifecycles(TypedDict):
    """Number of chunks by age, for every namespace."""

    as_of: Time
    namespaces: list[NamespaceLifecycle]
