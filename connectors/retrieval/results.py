"""The results of a search: chunks with their scores, in order.

Invariant: a result is scored by `streams/chunks/scoring.py` alone, from the row of a candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from highwater.connectors.postgres.pool import Row
from highwater.connectors.retrieval.parameters import Parameters, Scoring
from highwater.schemas.positions import Position
from highwater.streams.chunks.scoring import age_days, final_score, is_past_ttl, similarity_of, time_decay
from highwater.streams.chunks.states import Temperature
from highwater.streams.chunks.temperature import temperature
from highwater.streams.clock import to_ms, to_ms_or_none

_TOPIC = "chunks.chunk-submitted"


class Neighbour(NamedTuple):
    """A chunk beside a result in its source."""

    chunk_no: int
    title: str | None
    content: str


@dataclass(frozen=True, slots=True)
class Result:
    """A chunk and its score. `cosine` is None if it has no vector, `text_score` if words do not count, and `similarity` is of
    both; `position`: of the event that last wrote it.

    `before` and `after`: the neighbouring chunks, in order, if requested. `valid_until_ms`: when the text was replaced
    or removed; None if it is current. `rerank_score`: of a reranking service, 0 to 1; None without one.
    """

    ns: str
    slot: str
    source_id: str
    chunk_no: int
    title: str | None
    url: str | None
    content: str
    published_ms: int | None
    created_ms: int
    updated_ms: int
    cosine: float | None
    text_score: float | None
    similarity: float
    decay: float
    age_days: float
    temperature: Temperature
    final: float
    is_stale: bool
    position: str
    before: tuple[Neighbour, ...] = ()
    after: tuple[Neighbour, ...] = ()
    valid_until_ms: int | None = None
    rerank_score: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Return the chunk's key in the namespace."""
        return self.slot, self.source_id, self.chunk_no


@dataclass(frozen=True, slots=True)
class SearchResults:
    """The results, the best first.

    Attributes:
        results: at most the requested number.
        cold_hidden: how many chunks are hidden because they are past the TTL of the namespace, `COUNT_MAX` at most.
        without_vector: how many of the chunks have no vector yet, so that words alone find them, `COUNT_MAX` at most.
        is_complete: whether no other chunk scores higher, if the index finds the nearest.
        is_exact: whether that is certain without an index: all chunks were compared.
    """

    results: tuple[Result, ...]
    is_complete: bool
    is_exact: bool
    cold_hidden: int = 0
    without_vector: int = 0


def results_of(rows: Sequence[Row], asked: Parameters, scoring: Scoring) -> tuple[Result, ...]:
    """Return the results of rows, the best first."""
    return tuple(sorted((_result(row, asked, scoring) for row in rows), key=_place))


def _place(result: Result) -> tuple[Any, ...]:
    base = result.created_ms if result.published_ms is None else result.published_ms
    return (-result.final, -base, result.slot, result.source_id, result.chunk_no)


def _result(row: Row, asked: Parameters, scoring: Scoring) -> Result:
    passport = scoring.passport
    published_ms = to_ms_or_none(row["published_at"])
    created_ms = to_ms(row["created_at"])
    age = age_days(published_ms, created_ms, scoring.as_of_ms)
    decay = time_decay(age, passport.half_life_days)
    text_score = None if asked.words is None else row["text_score"]
    similarity = similarity_of(row["cosine"], text_score, asked.text_share)
    return Result(
        ns=asked.ns,
        slot=row["slot"],
        source_id=row["source_id"],
        chunk_no=row["chunk_no"],
        title=row["title"],
        url=row["url"],
        content=row["content"],
        published_ms=published_ms,
        created_ms=created_ms,
        updated_ms=to_ms(row["updated_at"]),
        cosine=None if asked.vector is None else row["cosine"],
        text_score=text_score,
        similarity=similarity,
        decay=decay,
        age_days=age,
        temperature=temperature(age, passport, scoring.is_hot),
        final=final_score(
            similarity, decay, passport.alpha, passport.beta, is_too_old=is_past_ttl(age, passport.ttl_days)
        ),
        is_stale=row["embedding_stale"],
        position=str(Position(_TOPIC, row["source_partition"], row["source_offset"])),
        valid_until_ms=to_ms_or_none(row["valid_until"]),
    )


def merged(current: Sequence[Result], former: Sequence[Result], per_source: int | None) -> tuple[Result, ...]:
    """Return current and former texts in one order, up to a number per source.

    Of sources with chunks on both sides, fewer than the limit may be dropped on either side, so with twice as many from
    each side none is missing.
    """
    keys = {one.key for one in current}
    counts: Counter[tuple[str, str]] = Counter()
    kept = []
    for one in sorted((*current, *(one for one in former if one.key not in keys)), key=_place):
        counts[one.slot, one.source_id] += 1
        if per_source is None or counts[one.slot, one.source_id] <= per_source:
            kept.append(one)
    return tuple(kept)
