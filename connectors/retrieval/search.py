"""Searches of chunks: what of a namespace answers best, by what it says and how old it is (R3.17, R3.18).

Laws. What is given is scored by `streams/chunks/scoring.py` alone; the statements only choose what is worth scoring. A small set
is compared as a whole. Of a large one the nearest by its index, the most recent and those with the words are, deeper once if the
first look does not settle it; `is_complete` says whether what was not looked at is known to score no higher (Fagin's threshold),
as far as the index found what is nearest. What is to be deleted is never found (R3.20). One search sees one moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import asyncpg
import numpy as np

from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.pool import Connection, Row, snapshot
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
# So many chunks are compared one by one, which is exact: of 384 numbers that takes 17 ms, and a search by the index of 100,000
# takes 12 to 16 (`tests/bench/chunks_search.py`).
COMPARED_MAX = 10_000
# How many of the nearest and of the most recent are looked at: first so many as settle most searches (of 100,000 chunks 600
# settle 97 of 100, 200 no more than 42; with words 200 do), then as many as the index gives in one go.
DEPTHS = {Mode.SEMANTIC: (600, 1_000), Mode.HYBRID: (200, 1_000)}
# Chunks with the words whose words are weighed, of those with all of them and of those with the rare ones: a few milliseconds.
WORDED_MAX = 500
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


class NothingToCompareError(HighwaterError):
    """No vector to compare with, and no word to look for in the question. Ask with a word, or with a vector of the namespace."""


class WrongVectorError(HighwaterError):
    """The vector of a search is not as long as those of the namespace. Search with what makes the namespace's vectors."""


class Neighbour(NamedTuple):
    """A chunk beside a result in its source."""

    chunk_no: int
    title: str | None
    content: str


@dataclass(frozen=True, slots=True)
class Result:
    """A chunk and how it scores. `text_score` is None where words do not count; `position`: of the event that wrote it last.

    `before` and `after`: the chunks beside it, in order, where they were asked for.
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

    Raises:
        NothingToCompareError: something was asked, and neither vectors nor words can answer it.
        WrongVectorError: the vector has not the length of those of the namespace.
        UnavailableError: PostgreSQL is away.
    """
    passport = Passport(**{name: namespace[name] for name in PASSPORT_KEYS})
    vector = _comparable(q_vector, namespace["dimensions"])
    has_words = bool(words and words.strip())
    text_share = text_share_of(mode, has_vector=vector is not None, has_words=has_words, text_share=passport.text_share)
    cut = to_datetime(max(TS_MS_MIN, as_of_ms - youngest_past_ttl_ms(passport.ttl_days) + 1))
    asked = _Search(
        ns=namespace["ns"],
        vector=vector,
        words=None,
        slot=slot,
        source_ids=None if source_ids is None else list(source_ids),
        oldest=_later(cut if passport.ttl_mode == TtlMode.FILTER else None, oldest_ms),
        oldest_scored=None if passport.ttl_mode == TtlMode.FILTER else cut,
        as_of=to_datetime(as_of_ms),
        alpha=passport.alpha,
        beta=passport.beta,
        half_life_days=passport.half_life_days,
        newest=None if newest_ms is None else to_datetime(newest_ms),
        text_share=text_share,
        per_source=per_source,
    )
    cold_before = cut if passport.ttl_mode == TtlMode.FILTER else None
    limit = max(1, min(limit, RESULTS_MAX))
    async with snapshot(pool) as tx:
        await vectors.enable(tx)
        found_words = await words_of(tx, asked.ns, words, WORDED_MAX) if words and text_share else None
        if vector is None and found_words is None and (q_vector is not None or has_words):
            raise NothingToCompareError
        if found_words is None:  # there is nothing but what vectors say
            asked = asked._replace(text_share=0.0)
            text_share = 0.0
        else:
            asked = asked._replace(
                words=found_words.any_word,
                queries=found_words.queries,
                weights=found_words.weights,
                saturation=found_words.saturation,
                saturation_per_octet=found_words.saturation_per_octet,
            )
        depths = DEPTHS[Mode.HYBRID if text_share else Mode.SEMANTIC]
        await tx.execute(QUERIES["search_settings"], str(depths[0]))  # first: what is counted is planned by them too
        cold = await tx.fetchval(
            QUERIES["count_cold_chunks"], asked.ns, asked.slot, asked.source_ids, cold_before, COLD_COUNT_MAX
        )
        count = await tx.fetchval(
            QUERIES["count_chunks_to_search"], asked.ns, asked.slot, asked.source_ids, COMPARED_MAX + 1
        )
        if count <= COMPARED_MAX:
            rows = await tx.fetch(QUERIES["search_all_chunks"], *asked, limit)
            found = Found(_results(rows, asked, passport, namespace, as_of_ms), is_complete=True, is_exact=True)
        else:
            found = await _by_index(tx, asked, found_words, passport, namespace, depths, limit, as_of_ms)
        results = await _with_neighbours(tx, asked.ns, found.results, neighbours) if neighbours else found.results
        return replace(found, results=results, cold_hidden=cold)


def _later(one: datetime | None, other_ms: int | None) -> datetime | None:
    """The later of two bounds, as far as there are any."""
    other = None if other_ms is None else to_datetime(other_ms)
    return max((bound for bound in (one, other) if bound is not None), default=None)


async def _with_neighbours(tx: Connection, ns: str, results: Sequence[Result], count: int) -> tuple[Result, ...]:
    """Results with as many chunks before and after each as there are, `count` at most."""
    keys = [[one.slot for one in results], [one.source_id for one in results], [one.chunk_no for one in results]]
    beside: dict[int, list[Neighbour]] = {}
    for place, *neighbour in await tx.fetch(QUERIES["neighbours_of"], ns, *keys, count):
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
    asked: _Search,
    words: AskedWords | None,
    passport: Passport,
    namespace: Row,
    depths: Sequence[int],
    limit: int,
    as_of_ms: int,
) -> Found:
    # Without vectors there is no such length, nor is it looked at.
    statement = QUERIES["search_near_chunks"].replace(_LENGTH, f"halfvec({namespace['dimensions'] or 1:d})")
    by_words = (None, None) if words is None else (words.all_words, words.rare_words)
    results: tuple[Result, ...] = ()
    for depth in depths:
        if depth != depths[0]:
            await tx.execute(QUERIES["search_settings"], str(depth))
        rows = await tx.fetch(statement, *asked, limit, depth, WORDED_MAX, *by_words)
        results = _results(rows, asked, passport, namespace, as_of_ms)
        if not rows:
            return Found((), is_complete=True, is_exact=False)
        # Settled but for the words, of which deeper tells no more.
        if _is_settled(results, rows[0], asked, depth, limit, as_of_ms):
            rest = 0.0 if words is None else words.rest
            is_complete = _is_settled(results, rows[0], asked, depth, limit, as_of_ms, text_score=rest)
            return Found(results, is_complete=is_complete, is_exact=False)
    return Found(results, is_complete=False, is_exact=False)


def _is_settled(
    results: Sequence[Result],
    looked: Row,
    asked: _Search,
    depth: int,
    limit: int,
    as_of_ms: int,
    text_score: float = 0.0,
) -> bool:
    """Whether no chunk that was not looked at scores higher than the last result, if its words weigh no more than this."""
    if looked["recent_count"] < depth:
        return True  # there are no others
    if len(results) < limit:
        return False
    cosine = 0.0
    if asked.vector is not None:
        nearest = looked["near_cosine"]
        cosine = 1.0 if nearest is None else max(0.0, nearest + _HALF_PRECISION)
    decay = time_decay(age_days(None, to_ms(looked["recent_base"]), as_of_ms), asked.half_life_days)
    of_words = None if asked.words is None else text_score
    bound = final_score(similarity_of(cosine, of_words, asked.text_share), decay, asked.alpha, asked.beta)
    return bound * (1 + _LAST_BITS) <= results[-1].final


def _results(
    rows: Sequence[Row],
    asked: _Search,
    passport: Passport,
    namespace: Row,
    as_of_ms: int,
) -> tuple[Result, ...]:
    found = [_result(row, asked, passport, namespace, as_of_ms) for row in rows]
    found.sort(key=_place)
    return tuple(found)


def _place(result: Result) -> tuple[Any, ...]:
    base = result.created_ms if result.published_ms is None else result.published_ms
    return (-result.final, -base, result.slot, result.source_id, result.chunk_no)


def _result(row: Row, asked: _Search, passport: Passport, namespace: Row, as_of_ms: int) -> Result:
    published_ms = to_ms_or_none(row["published_at"])
    created_ms = to_ms(row["created_at"])
    age = age_days(published_ms, created_ms, as_of_ms)
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
        temperature=temperature(age, passport, namespace["is_hot"]),
        final=final_score(
            similarity_of(row["cosine"], text_score, asked.text_share),
            decay,
            passport.alpha,
            passport.beta,
            is_too_old=is_past_ttl(age, passport.ttl_days),
        ),
        is_stale=row["embedding_stale"],
        position=str(Position(_TOPIC, row["source_partition"], row["source_offset"])),
    )
