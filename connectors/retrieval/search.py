"""Searches of chunks: what of a namespace answers best, by what it says and how old it is (R3.17, R3.18).

Laws. What is given is scored by `streams/chunks/scoring.py` alone; the statements only choose what is worth scoring. A small set
is compared as a whole. Of a large one the nearest by its index, the most recent and those with the words are, deeper once if the
first look does not settle it; `is_complete` says whether what was not looked at is known to score no higher (Fagin's threshold),
as far as the index found what is nearest. What is to be deleted is never found (R3.20). One search sees one moment. A search as
of a time reads the texts that were stored then: what stood then and still does, and all that was replaced or taken out since.
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
from highwater.connectors.postgres.pool import Connection, Row, one_row, snapshot
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

# What one answer can hold: a screen or two; more is a listing.
RESULTS_MAX = 100
# So many chunks are compared one by one, which is exact: of 384 numbers that took 17 ms when a search by the index of 100,000
# took 12 to 16, before searches looked at fewer chunks (`tests/bench/chunks_search.py --compared`).
COMPARED_MAX = 10_000
# How many of the nearest and how many of the most recent are looked at: first so many as settle most searches (of 100,000 chunks
# 300 and 100 settle 60 of 100), then as many as the index gives in one go.
DEPTHS = {Mode.SEMANTIC: ((300, 100), (1_000, 1_000)), Mode.HYBRID: ((200, 100), (1_000, 1_000))}
# Chunks with the words whose words are weighed, of those with all of them and of those with the rare ones: a few milliseconds.
WORDED_MAX = 500
# Where only these leave open whether another chunk scores more, a second look at the fewest that settle it, up to so many more:
# one of thirty searches of 7,000 chunks, and in those it doubles the time. Up to 2,000 in all made the median search of 100,000
# chunks slower by half.
WORDED_MORE_MAX = 1_000
# What a search does not find because it is too old is counted so far: enough to see that there is much, some milliseconds.
COLD_COUNT_MAX = 10_000
# The index holds half precision: a number is off by 2^-11 of it at most, and so is a vector. Of two vectors that turns a cosine
# by 2^-10, and it may do so of what is the last in the order of the index and of what comes after it.
_HALF_PRECISION = 2.0**-9
# A power may be off in its last bits, so two ages in order may have decays that are not.
_LAST_BITS = 1e-12
_TOPIC = "chunks.chunk-submitted"
# In the statements the length of vectors is a number of their text, as the index's is.
_LENGTH = "halfvec(384)"
_BEST = (QUERIES["best_candidates"], QUERIES["whole_chunks"])


class _Statements(NamedTuple):
    """The statements that search the current texts of a namespace."""

    of_all: str
    near_without_words: str
    near_with_words: str


def _statements(visible: str) -> _Statements:
    near = (visible, QUERIES["near_candidates"])
    return _Statements(
        "\n".join((visible, QUERIES["all_candidates"], *_BEST)),
        "\n".join((*near, QUERIES["candidates_without_words"], *_BEST)),
        "\n".join((*near, QUERIES["candidates_with_words"], *_BEST)),
    )


_PLAIN = _statements(QUERIES["visible_chunks"])
# While vectors of the namespace's model stand beside its chunks.
_BESIDE = _statements(QUERIES["visible_chunks_beside"])
_FORMER = "\n".join(
    (
        QUERIES["visible_former_chunks"],
        QUERIES["all_candidates"],
        QUERIES["best_candidates"],
        QUERIES["whole_former_chunks"],
    )
)


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
    """A chunk and how it scores. `text_score` is None where words do not count; `position`: of the event that wrote it last.

    `before` and `after`: the chunks beside it, in order, where they were asked for. `valid_until_ms`: when the text was replaced
    or taken out; None where it is still the chunk's. `rerank_score`: of a reranking service, 0 to 1; None where none was asked.
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
        """Which chunk of the namespace it is."""
        return self.slot, self.source_id, self.chunk_no


@dataclass(frozen=True, slots=True)
class Found:
    """The results, the best first.

    Attributes:
        results: at most as many as were asked for.
        cold_hidden: how many chunks are not found because they are past the life of the namespace, `COLD_COUNT_MAX` at most.
        is_complete: whether no other chunk scores higher, as far as the index knows what is nearest.
        is_exact: whether that is so whatever an index knows: all chunks were compared.
    """

    results: tuple[Result, ...]
    is_complete: bool
    is_exact: bool
    cold_hidden: int = 0


class _Search(NamedTuple):
    """The parameters of a statement that are the same in all."""

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
    ranks: Sequence[float] = RANKS
    per_source: int | None = None
    texts_of: datetime | None = None

    def weighing(self, words: AskedWords, share: float) -> _Search:
        """The same with words, which are so much of a similarity."""
        return self._replace(
            words=words.any_word,
            text_share=share,
            queries=words.queries,
            weights=words.weights,
            saturation=words.saturation,
            saturation_per_octet=words.saturation_per_octet,
        )


class _Scoring(NamedTuple):
    """What the score of a chunk follows from, beside what was asked."""

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
) -> Found:
    """The chunks of a namespace that answer best.

    Args:
        pool: connections.
        namespace: its row of `chunk_namespaces`.
        q_vector: little-endian float32, made by what makes the namespace's vectors; None, or zeros: there is nothing to compare.
        words: what is looked for; they count in hybrid mode, and wherever there is no vector to compare with.
        limit: 1 to `RESULTS_MAX`.
        as_of_ms: the moment at which ages are taken.
        slot: only chunks of this slot.
        source_ids: only chunks of these sources.
        mode: what counts as similar.
        newest_ms: only chunks that were published by then, or stored where they do not say when they were published.
        oldest_ms: only those that were published then or later.
        per_source: how many chunks of one source at most.
        neighbours: how many chunks before and after each result come with it.
        texts_of_ms: search the texts that were stored at this time, from `known_from_ms` on; None: those of now. What a word
            weighs is always that of now.

    Raises:
        NothingToCompareError: something was asked, and neither vectors nor words can answer it.
        WrongVectorError: the vector has not the length of those of the namespace.
        UnavailableError: PostgreSQL is away.
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
    async with snapshot(pool) as tx:
        await vectors.enable(tx)
        statements = _PLAIN
        if vector is not None:
            now = await tx.fetchrow(QUERIES["model_of_namespace"], asked.ns)
            statements = _BESIDE if now is not None and now["vectors_beside"] else _PLAIN
            if now is None or now["embedding_model"] != namespace["embedding_model"]:
                # All vectors of the namespace became another model's since its row was read: words are left.
                vector, asked = None, asked._replace(vector=None)
                share = text_share_of(
                    mode, has_vector=False, has_words=has_words, text_share=scoring.passport.text_share
                )
        found_words = await words_of(tx, asked.ns, words, WORDED_MAX, text_share=share) if words and share else None
        if vector is None and found_words is None and (q_vector is not None or has_words):
            raise NothingToCompareError
        asked = asked if found_words is None else asked.weighing(found_words, share)
        depths = DEPTHS[Mode.SEMANTIC if found_words is None else Mode.HYBRID]
        await tx.execute(QUERIES["search_settings"], str(depths[0][0]))  # first: what is counted is planned by them too
        most = (COMPARED_MAX + 1, cold_before, COLD_COUNT_MAX)
        counted = await one_row(tx, QUERIES["count_chunks"], asked.ns, slot, asked.source_ids, *most, asked.texts_of)
        looked_for = limit if asked.texts_of is None or per_source is None else 2 * limit
        if counted["compared"] <= COMPARED_MAX:
            rows = await tx.fetch(statements.of_all, *asked, looked_for)
            found = Found(_results(rows, asked, scoring), is_complete=True, is_exact=True)
        else:
            near = _near_statement(statements, namespace["dimensions"], has_words=found_words is not None)
            found = await _by_index(tx, near, asked, found_words, scoring, depths, looked_for)
        if asked.texts_of is not None:
            former = _results(await tx.fetch(_FORMER, *asked, looked_for), asked, scoring)
            found = replace(found, results=_merged(found.results, former, per_source)[:limit])
        results = await _with_neighbours(tx, asked, found.results, neighbours) if neighbours else found.results
        return replace(found, results=results, cold_hidden=counted["cold"])


def _merged(current: Sequence[Result], former: Sequence[Result], per_source: int | None) -> tuple[Result, ...]:
    """Current and former texts in one order, of each source some.

    Of sources with chunks on both sides some on either side fall out: fewer than are asked for, so with twice as many from each
    side none is missing.
    """
    keys = {one.key for one in current}
    counts: Counter[tuple[str, str]] = Counter()
    kept = []
    for one in sorted((*current, *(one for one in former if one.key not in keys)), key=_place):
        counts[one.slot, one.source_id] += 1
        if per_source is None or counts[one.slot, one.source_id] <= per_source:
            kept.append(one)
    return tuple(kept)


def _near_statement(statements: _Statements, dimensions: int | None, *, has_words: bool) -> str:
    """The statement that searches by the index of vectors of this length; without vectors it is not looked at."""
    statement = statements.near_with_words if has_words else statements.near_without_words
    return statement.replace(_LENGTH, f"halfvec({dimensions or 1:d})")


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
    """The parameters of a search without words, and before when a chunk is hidden for its age."""
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
    """The later of two bounds, as far as there are any."""
    other = None if other_ms is None else to_datetime(other_ms)
    return max((bound for bound in (one, other) if bound is not None), default=None)


async def _with_neighbours(tx: Connection, asked: _Search, results: Sequence[Result], count: int) -> tuple[Result, ...]:
    """Results with as many chunks before and after each as there are, `count` at most."""
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
    """The vector, if there is something to compare it with."""
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
    depths: Sequence[tuple[int, int]],
    limit: int,
) -> Found:
    """The best of the candidates of each depth, until no other can be among them."""
    results: tuple[Result, ...] = ()
    for depth in depths:
        if depth != depths[0]:
            await tx.execute(QUERIES["search_settings"], str(depth[0]))
        rows = await _look(tx, statement, asked, words, depth, limit)
        results = _results(rows, asked, scoring)
        if not rows:
            return Found((), is_complete=True, is_exact=False)
        if rows[0]["recent_count"] < depth[1]:  # there are no others
            return Found(results, is_complete=True, is_exact=False)
        if len(results) < limit:
            continue
        is_settled = _settles(rows[0], results[-1].final, asked, scoring)
        if not is_settled(0.0):
            continue
        if words is None or is_settled(words.rest):
            return Found(results, is_complete=True, is_exact=False)
        # Settled but for the words, of which a deeper look tells no more.
        more = words.settling(is_settled, WORDED_MORE_MAX)
        if more is not None:  # what it finds besides makes the last of the results better, never worse
            results = _results(await _look(tx, statement, asked, more, depth, limit), asked, scoring)
        return Found(results, is_complete=more is not None, is_exact=False)
    return Found(results, is_complete=False, is_exact=False)


async def _look(
    tx: Connection, statement: str, asked: _Search, words: AskedWords | None, depth: tuple[int, int], limit: int
) -> list[asyncpg.Record]:
    """The best of the candidates of one depth, those with words among them."""
    if words is None:
        return await tx.fetch(statement, *asked, limit, *depth)
    worded_max = max(WORDED_MAX, words.candidates)
    return await tx.fetch(statement, *asked, limit, *depth, worded_max, words.all_words, words.rare_words)


def _settles(looked: Row, lowest: float, asked: _Search, scoring: _Scoring) -> Callable[[float], bool]:
    """Whether no other chunk scores more than the lowest of the results, if the words of none weigh more than a score."""
    return lambda text_score: _bound(looked, asked, scoring, text_score) <= lowest


def _bound(looked: Row, asked: _Search, scoring: _Scoring, text_score: float) -> float:
    """What no chunk that was not looked at scores above, if its words weigh no more than this."""
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
