"""Searches of chunks: those of a namespace that answer best, by contents and age (R3.17, R3.18).

Invariants. Only `streams/chunks/scoring.py` computes scores; the statements only select candidates. A small set is
compared completely. For a large one the candidates are the nearest by its index, the most recent and those with the
words, once more and deeper if the first read does not decide; `is_complete` shows whether the rest is known to score no
higher (Fagin's threshold), if the index found the nearest. A chunk that is to be deleted is never found (R3.20). One
search reads one snapshot. A search as of a time reads the texts stored then: those unchanged since, and all that were
replaced or removed later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import asyncpg
import numpy as np

from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.pool import Connection, Row, one_row, snapshot_with
from highwater.connectors.retrieval.search_statements import (
    ONE_PLAN,
    OWN_PLAN,
    SETTINGS,
    near_statement,
    statement_of_all,
    statement_of_former,
    where_of,
)
from highwater.connectors.retrieval.statements import QUERIES
from highwater.connectors.retrieval.words import RANKS, AskedWords, words_of
from highwater.schemas.errors import HighwaterError
from highwater.schemas.positions import Position
from highwater.streams.checks import TS_MS_MIN
from highwater.streams.chunks.passports import PASSPORT_KEYS, Passport, TtlMode
from highwater.streams.chunks.scoring import (
    Mode,
    age_days,
    final_score,
    is_past_ttl,
    similarity_of,
    text_share_of,
    time_decay,
    youngest_past_ttl_ms,
)
from highwater.streams.chunks.states import Temperature
from highwater.streams.chunks.temperature import temperature
from highwater.streams.clock import to_datetime, to_ms, to_ms_or_none

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

# The size of one answer: a screen or two; more is a listing.
RESULTS_MAX = 100
# Up to this many chunks are compared one by one, which is exact: with 384 numbers that took 17 ms when an index search
# of 100,000 took 12 to 16, before searches read fewer chunks (`tests/bench/chunks_search.py --compared`).
COMPARED_MAX = 10_000


class Depth(NamedTuple):
    """How far the index is followed (`hnsw.ef_search`), and the number of nearest and of most recent candidates."""

    effort: int
    nearest: int
    recent: int


# First enough to decide most searches, then more; the last is as many as the index returns at once. Where only nearness
# and age count, a search reads only those of the most recent that can be among the best: of 100,000 chunks half of the
# searches read none beside 300 of the nearest, and 400 are enough for 65 of 100. A search that is decided late has many
# chunks of almost one nearness, of which the index also finds fewer with the same effort.
DEPTHS = {
    Mode.SEMANTIC: (Depth(300, 300, 400), Depth(500, 400, 3_000), Depth(1_000, 1_000, 3_000)),
    Mode.HYBRID: (Depth(200, 200, 100), Depth(1_000, 1_000, 1_000)),
}
# Chunks with the words whose words are weighed, of those with all words and of those with the rare ones: a few
# milliseconds.
WORDED_MAX = 500
# If only these leave open whether another chunk scores more, a second read covers the fewest that decide it, up to this
# many more: one of thirty searches of 7,000 chunks, whose time it doubles. Up to 2,000 in all made the median search of
# 100,000 chunks slower by half.
WORDED_MORE_MAX = 1_000
# Chunks hidden for their age are counted up to this number: enough to see that there are many, some milliseconds.
COLD_COUNT_MAX = 10_000
# The index stores half precision: a number is off by at most 2^-11 of it, and so is a vector. For two vectors a cosine
# changes by up to 2^-10, for the last in the order of the index and for the one after it.
_HALF_PRECISION = 2.0**-9
# A power may be off in its last bits, so the decays of two ordered ages may be out of order.
_LAST_BITS = 1e-12
_TOPIC = "chunks.chunk-submitted"


class NothingToCompareError(HighwaterError):
    """The search has no vector and no word. Search with a word, or with a vector of the namespace."""


class WrongVectorError(HighwaterError):
    """The vector of a search has another length than those of the namespace. Use the model of the namespace."""


class Neighbour(NamedTuple):
    """A chunk beside a result in its source."""

    chunk_no: int
    title: str | None
    content: str


@dataclass(frozen=True, slots=True)
class Result:
    """A chunk and its score. `text_score` is None if words do not count; `position`: of the event that last wrote it.

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
    similarity: float
    text_score: float | None
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
        cold_hidden: how many chunks are hidden because they are past the TTL of the namespace, `COLD_COUNT_MAX` at
            most.
        is_complete: whether no other chunk scores higher, if the index finds the nearest.
        is_exact: whether that is certain without an index: all chunks were compared.
    """

    results: tuple[Result, ...]
    is_complete: bool
    is_exact: bool
    cold_hidden: int = 0


class _Search(NamedTuple):
    """The parameters that all statements share."""

    ns: str
    vector: bytes | None
    words: str | None
    slot: str | None
    source_ids: list[str] | None
    oldest: datetime | None
    oldest_scored: datetime | None
    as_of: datetime
    alpha: float
    beta: float
    half_life_days: float
    text_share: float
    newest: datetime | None
    queries: list[str] | None = None
    weights: list[float] | None = None
    saturation: float | None = None
    saturation_per_octet: float | None = None
    ranks: Sequence[float] | None = None
    per_source: int | None = None
    texts_of: datetime | None = None

    def weighing(self, words: AskedWords, share: float) -> _Search:
        """Return the same with words, and their share of a similarity."""
        return self._replace(
            words=words.any_word,
            text_share=share,
            queries=words.queries,
            weights=words.weights,
            saturation=words.saturation,
            saturation_per_octet=words.saturation_per_octet,
            ranks=RANKS,
        )


class _Scoring(NamedTuple):
    """What the score of a chunk depends on, besides the question."""

    passport: Passport
    is_hot: bool
    as_of_ms: int


async def search(
    pool: Pool,
    namespace: Row,
    *,
    q_vector: bytes | None,
    words: str | None,
    limit: int,
    as_of_ms: int,
    slot: str | None = None,
    source_ids: Sequence[str] | None = None,
    mode: Mode = Mode.SEMANTIC,
    newest_ms: int | None = None,
    oldest_ms: int | None = None,
    per_source: int | None = None,
    neighbours: int = 0,
    texts_of_ms: int | None = None,
) -> SearchResults:
    """Return the chunks of a namespace that answer best.

    Args:
        pool: connections.
        namespace: its row of `chunk_namespaces`.
        q_vector: little-endian float32, of the model of the namespace's vectors; None, or zeros: nothing is compared.
        words: the search text; it counts in hybrid mode, and whenever there is no vector to compare.
        limit: 1 to `RESULTS_MAX`.
        as_of_ms: the time for computing ages.
        slot: only chunks of this slot.
        source_ids: only chunks of these sources.
        mode: what counts as similar.
        newest_ms: only chunks that were published by then, or stored if they have no time of publication.
        oldest_ms: only those that were published then or later.
        per_source: maximum of chunks per source.
        neighbours: how many chunks before and after each result are returned.
        texts_of_ms: search the texts that were stored at this time, from `known_from_ms` on; None: the current ones.
            Words always have their current weights.

    Raises:
        NothingToCompareError: there is a question, but neither vectors nor words can answer it.
        WrongVectorError: the vector's length differs from the namespace's.
        UnavailableError: PostgreSQL is unavailable.
    """
    scoring = _Scoring(Passport(**{name: namespace[name] for name in PASSPORT_KEYS}), namespace["is_hot"], as_of_ms)
    vector = _comparable(q_vector, namespace["dimensions"])
    asked, cold_before = _asked(namespace["ns"], vector, slot, source_ids, scoring, oldest_ms, newest_ms, per_source)
    asked = asked._replace(texts_of=None if texts_of_ms is None else to_datetime(texts_of_ms))
    has_words = bool(words and words.strip())
    share = text_share_of(
        mode, has_vector=vector is not None, has_words=has_words, text_share=scoring.passport.text_share
    )
    limit = max(1, min(limit, RESULTS_MAX))
    depths = DEPTHS[Mode.HYBRID if share else Mode.SEMANTIC]
    is_filtered = any(one is not None for one in (slot, source_ids, newest_ms, oldest_ms, texts_of_ms))
    settings = SETTINGS | {
        "hnsw.ef_search": str(depths[0].effort),
        "plan_cache_mode": OWN_PLAN if is_filtered else ONE_PLAN,
    }
    async with snapshot_with(pool, settings) as tx:
        await vectors.enable(tx)
        most = (COMPARED_MAX + 1, cold_before, COLD_COUNT_MAX)
        now = await one_row(tx, QUERIES["count_chunks"], asked.ns, slot, asked.source_ids, *most, asked.texts_of)
        if vector is not None and now["embedding_model"] != namespace["embedding_model"]:
            # All vectors of the namespace were switched to another model since its row was read: words are left.
            vector, asked = None, asked._replace(vector=None)
            share = text_share_of(mode, has_vector=False, has_words=has_words, text_share=scoring.passport.text_share)
        found_words = await words_of(tx, asked.ns, words, WORDED_MAX, text_share=share) if words and share else None
        if vector is None and found_words is None and (q_vector is not None or has_words):
            raise NothingToCompareError
        asked = asked if found_words is None else asked.weighing(found_words, share)
        looked_for = limit if asked.texts_of is None or per_source is None else 2 * limit
        is_exact, where, by_words = now["compared"] <= COMPARED_MAX, where_of(now), found_words is not None
        if not is_filtered and (is_exact or by_words):
            await tx.execute(f"SET LOCAL plan_cache_mode = {OWN_PLAN}")
        if is_exact:
            rows = await tx.fetch(statement_of_all(where, per_source, has_words=by_words), *asked, looked_for)
            found = SearchResults(_results(rows, asked, scoring), is_complete=True, is_exact=True)
        else:
            near = near_statement(where, namespace, per_source, has_words=by_words, is_filtered=is_filtered)
            found = await _by_index(tx, near, asked, found_words, scoring, depths, looked_for)
        if asked.texts_of is not None:
            rows = await tx.fetch(statement_of_former(per_source, has_words=by_words), *asked, looked_for)
            former = _results(rows, asked, scoring)
            found = replace(found, results=_merged(found.results, former, per_source)[:limit])
        results = await _with_neighbours(tx, asked, found.results, neighbours) if neighbours else found.results
        return replace(found, results=results, cold_hidden=now["cold"])


def _merged(current: Sequence[Result], former: Sequence[Result], per_source: int | None) -> tuple[Result, ...]:
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


def _asked(
    ns: str,
    vector: bytes | None,
    slot: str | None,
    source_ids: Sequence[str] | None,
    scoring: _Scoring,
    oldest_ms: int | None,
    newest_ms: int | None,
    per_source: int | None,
) -> tuple[_Search, datetime | None]:
    """Return the parameters of a search without words, and the time before which a chunk is hidden for its age."""
    passport = scoring.passport
    cut = to_datetime(max(TS_MS_MIN, scoring.as_of_ms - youngest_past_ttl_ms(passport.ttl_days) + 1))
    is_filter = passport.ttl_mode == TtlMode.FILTER
    asked = _Search(
        ns=ns,
        vector=vector,
        words=None,
        slot=slot,
        source_ids=None if source_ids is None else list(source_ids),
        oldest=_later(cut if is_filter else None, oldest_ms),
        oldest_scored=None if is_filter else cut,
        as_of=to_datetime(scoring.as_of_ms),
        alpha=passport.alpha,
        beta=passport.beta,
        half_life_days=passport.half_life_days,
        text_share=0.0,
        newest=None if newest_ms is None else to_datetime(newest_ms),
        per_source=per_source,
    )
    return asked, cut if is_filter else None


def _later(one: datetime | None, other_ms: int | None) -> datetime | None:
    """Return the later of two bounds, if there are any."""
    other = None if other_ms is None else to_datetime(other_ms)
    return max((bound for bound in (one, other) if bound is not None), default=None)


async def _with_neighbours(tx: Connection, asked: _Search, results: Sequence[Result], count: int) -> tuple[Result, ...]:
    """Return results with up to `count` chunks before and after each."""
    keys = [[one.slot for one in results], [one.source_id for one in results], [one.chunk_no for one in results]]
    beside: dict[int, list[Neighbour]] = {}
    for place, *neighbour in await tx.fetch(QUERIES["neighbours_of"], asked.ns, *keys, count, asked.texts_of):
        beside.setdefault(place - 1, []).append(Neighbour(*neighbour))
    return tuple(
        replace(
            one,
            before=tuple(other for other in beside.get(place, ()) if other.chunk_no < one.chunk_no),
            after=tuple(other for other in beside.get(place, ()) if other.chunk_no > one.chunk_no),
        )
        for place, one in enumerate(results)
    )


def _comparable(vector: bytes | None, dimensions: int | None) -> bytes | None:
    """Return the vector, if it can be compared."""
    if vector is None or dimensions is None:
        return None
    if len(vector) != 4 * dimensions:
        raise WrongVectorError(f"the vector has {len(vector) // 4} numbers, those of the namespace have {dimensions}")
    return vector if np.frombuffer(vector, "<f4").any() else None


async def _by_index(
    tx: Connection,
    statement: str,
    asked: _Search,
    words: AskedWords | None,
    scoring: _Scoring,
    depths: Sequence[Depth],
    limit: int,
) -> SearchResults:
    """Return the best candidates of each depth, until no other chunk can be among them."""
    results: tuple[Result, ...] = ()
    for depth in depths:
        if depth != depths[0]:
            await tx.execute(f"SET LOCAL hnsw.ef_search = {depth.effort:d}")
        rows = await _look(tx, statement, asked, words, depth, limit)
        results = _results(rows, asked, scoring)
        if not rows:
            return SearchResults((), is_complete=True, is_exact=False)
        if rows[0]["recent_base"] is None:  # there are no others
            return SearchResults(results, is_complete=True, is_exact=False)
        if len(results) < limit:
            continue
        is_settled = _settles(rows[0], results[-1].final, asked, scoring)
        if not is_settled(0.0):
            continue
        if words is None or is_settled(words.rest):
            return SearchResults(results, is_complete=True, is_exact=False)
        # Decided except for the words, about which a deeper read says no more.
        more = words.settling(is_settled, WORDED_MORE_MAX)
        if more is not None:  # further results only improve the last ones
            results = _results(await _look(tx, statement, asked, more, depth, limit), asked, scoring)
        return SearchResults(results, is_complete=more is not None, is_exact=False)
    return SearchResults(results, is_complete=False, is_exact=False)


async def _look(
    tx: Connection, statement: str, asked: _Search, words: AskedWords | None, depth: Depth, limit: int
) -> list[asyncpg.Record]:
    """Return the best candidates of one depth, including those with words."""
    if words is None:
        return await tx.fetch(statement, *asked, limit, depth.nearest, depth.recent)
    worded_max = max(WORDED_MAX, words.candidates)
    by_words = (worded_max, words.all_words, words.rare_words)
    return await tx.fetch(statement, *asked, limit, depth.nearest, depth.recent, *by_words)


def _settles(looked: Row, lowest: float, asked: _Search, scoring: _Scoring) -> Callable[[float], bool]:
    """Return a function: whether no other chunk scores more than the lowest result, if the words of none weigh more
    than a score.
    """
    return lambda text_score: _bound(looked, asked, scoring, text_score) <= lowest


def _bound(looked: Row, asked: _Search, scoring: _Scoring, text_score: float) -> float:
    """Return the maximum score of a chunk that was not read, if its words weigh no more than this."""
    cosine = 0.0
    if asked.vector is not None:
        nearest = looked["near_cosine"]
        cosine = 1.0 if nearest is None else max(0.0, nearest + _HALF_PRECISION)
    decay = time_decay(age_days(None, to_ms(looked["recent_base"]), scoring.as_of_ms), asked.half_life_days)
    of_words = None if asked.words is None else text_score
    similarity = similarity_of(cosine, of_words, asked.text_share)
    return final_score(similarity, decay, asked.alpha, asked.beta) * (1 + _LAST_BITS)


def _results(rows: Sequence[Row], asked: _Search, scoring: _Scoring) -> tuple[Result, ...]:
    return tuple(sorted((_result(row, asked, scoring) for row in rows), key=_place))


def _place(result: Result) -> tuple[Any, ...]:
    base = result.created_ms if result.published_ms is None else result.published_ms
    return (-result.final, -base, result.slot, result.source_id, result.chunk_no)


def _result(row: Row, asked: _Search, scoring: _Scoring) -> Result:
    passport = scoring.passport
    published_ms = to_ms_or_none(row["published_at"])
    created_ms = to_ms(row["created_at"])
    age = age_days(published_ms, created_ms, scoring.as_of_ms)
    decay = time_decay(age, passport.half_life_days)
    text_score = None if asked.words is None else row["text_score"]
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
        similarity=row["cosine"],
        text_score=text_score,
        decay=decay,
        age_days=age,
        temperature=temperature(age, passport, scoring.is_hot),
        final=final_score(
            similarity_of(row["cosine"], text_score, asked.text_share),
            decay,
            passport.alpha,
            passport.beta,
            is_too_old=is_past_ttl(age, passport.ttl_days),
        ),
        is_stale=row["embedding_stale"],
        position=str(Position(_TOPIC, row["source_partition"], row["source_offset"])),
        valid_until_ms=to_ms_or_none(row["valid_until"]),
    )
