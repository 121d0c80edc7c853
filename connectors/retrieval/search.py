"""Searches of chunks: those of a namespace that answer best, by contents and age (R3.17, R3.18).

Invariants. Only `streams/chunks/scoring.py` computes scores; the statements only select candidates. A small set is
compared completely. For a large one the candidates are the nearest by its index, the most recent and those with the
words, once more and deeper if the first read does not decide; `is_complete` shows whether the rest is known to score no
higher (Fagin's threshold), if the index found the nearest. A chunk that is to be deleted is never found (R3.20). One
search reads one snapshot. A search as of a time reads the texts stored then: those unchanged since, and all that were
replaced or removed later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import asyncpg
import numpy as np

from highwater.connectors.models.local_model import is_local_basis
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.pool import Connection, Row, one_row, snapshot_with
from highwater.connectors.retrieval.parameters import Parameters, Scoring, parameters_of
from highwater.connectors.retrieval.results import Neighbour, Result, SearchResults, merged, results_of
from highwater.connectors.retrieval.search_statements import (
    SETTINGS,
    near_statement,
    plan_mode,
    statement_of_all,
    statement_of_former,
    where_of,
)
from highwater.connectors.retrieval.statements import QUERIES
from highwater.connectors.retrieval.words import AskedWords, words_of, words_required
from highwater.schemas.errors import HighwaterError
from highwater.streams.chunks.asked_text import AskedText
from highwater.streams.chunks.passports import PASSPORT_KEYS, Passport
from highwater.streams.chunks.scoring import (
    NAMED_TEXT_SHARE,
    UNREAD_TEXT_SHARE,
    Mode,
    age_days,
    final_score,
    similarity_of,
    text_share_of,
    time_decay,
)
from highwater.streams.clock import to_ms
from highwater.streams.models.wordpiece import is_read

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
# searches read none beside 250 of the nearest, and 400 are enough for 57 of 100. With 300 of the nearest they are for 65
# of 100, but the median search takes 0.3 ms more, and the mean as much less. A search that is decided late has many
# chunks of almost one nearness, of which the index also finds fewer with the same effort.
DEPTHS = {
    Mode.SEMANTIC: (Depth(250, 250, 400), Depth(500, 400, 3_000), Depth(1_000, 1_000, 3_000)),
    Mode.HYBRID: (Depth(200, 200, 100), Depth(1_000, 1_000, 1_000)),
}
# Chunks with the words whose words are weighed, of those with all words and of those with the rare ones: a few
# milliseconds.
WORDED_MAX = 500
# If only these leave open whether another chunk scores more, a second read covers the fewest that decide it, up to this
# many more: one of thirty searches of 7,000 chunks, whose time it doubles. Up to 2,000 in all made the median search of
# 100,000 chunks slower by half.
WORDED_MORE_MAX = 1_000
# Chunks that are hidden for their age, and those without a vector, are counted up to this number: enough to see that there
# are many, some milliseconds.
COUNT_MAX = 10_000
# The index stores half precision: a number is off by at most 2^-11 of it, and so is a vector. For two vectors a cosine
# changes by up to 2^-10, for the last in the order of the index and for the one after it.
_HALF_PRECISION = 2.0**-9
# A power may be off in its last bits, so the decays of two ordered ages may be out of order.
_LAST_BITS = 1e-12


class NothingToCompareError(HighwaterError):
    """The search has no vector and no word. Search with a word, or with a vector of the namespace."""


class WrongVectorError(HighwaterError):
    """The vector of a search has another length than those of the namespace. Use the model of the namespace."""


class _Looking(NamedTuple):
    """What one snapshot is searched for.

    `limit`: how many results; `depths`: how far the index is followed, one after the other; `is_filtered`: some chunks
    are left out for what they are; `lacks_vectors`: some have none, and words alone count for them.
    """

    asked: Parameters
    words: AskedWords | None
    scoring: Scoring
    depths: Sequence[Depth]
    limit: int
    is_filtered: bool
    lacks_vectors: bool


async def search(
    pool: Pool,
    namespace: Row,
    *,
    q_vector: bytes | None,
    words: str | AskedText | None,
    limit: int,
    as_of_ms: int,
    slot: str | None = None,
    source_ids: Sequence[str] | None = None,
    mode: Mode = Mode.HYBRID,
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
        words: the search text; it counts in hybrid mode, and whenever there is no vector to compare. With what it requires or
            excludes, in every mode.
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
    scoring = Scoring(Passport(**{name: namespace[name] for name in PASSPORT_KEYS}), namespace["is_hot"], as_of_ms)
    filters: dict[str, Any] = {"slot": slot, "source_ids": source_ids, "newest_ms": newest_ms, "oldest_ms": oldest_ms}
    vector = _comparable(q_vector, namespace["dimensions"])
    asked, cold_before = parameters_of(
        namespace["ns"], vector, scoring, **filters, per_source=per_source, texts_of_ms=texts_of_ms
    )
    said = words if isinstance(words, AskedText) else AskedText(words or "")
    is_of_some = bool(said.required or said.excluded) or any(one is not None for one in filters.values())
    is_filtered = texts_of_ms is not None or is_of_some
    text = said.text if said.text.strip() else None
    limit = max(1, min(limit, RESULTS_MAX))
    depths = DEPTHS[Mode.HYBRID if _text_share(asked, text, mode, scoring) else Mode.SEMANTIC]
    plan = plan_mode(is_filtered=is_filtered)
    settings = SETTINGS | {"hnsw.ef_search": str(depths[0].effort), "plan_cache_mode": plan}
    async with snapshot_with(pool, settings) as tx:
        await vectors.enable(tx)
        if said.required or said.excluded:
            asked = asked.requiring(said, await words_required(tx, asked.ns, said))
        now = await _state(tx, asked, cold_before)
        if now["embedding_model"] != namespace["embedding_model"]:
            # All vectors of the namespace were switched to another model since its row was read: words are left.
            asked = asked._replace(vector=None)
        asked, found_words = await _with_words(tx, asked, text, mode, scoring, namespace["embedding_model"])
        if asked.vector is None and found_words is None and (q_vector is not None or text is not None):
            raise NothingToCompareError
        lacks_vectors = asked.vector is not None and now["without_vector"] > 0
        looked_for = _looked_for(asked, limit)
        looking = _Looking(asked, found_words, scoring, depths, looked_for, is_filtered, lacks_vectors)
        found = await _current(tx, namespace, now, looking)
        if asked.texts_of is not None:
            found = await _with_former(tx, found, looking, limit)
        results = await _with_neighbours(tx, asked, found.results, neighbours) if neighbours else found.results
        return replace(found, results=results, cold_hidden=now["cold"], without_vector=now["without_vector"])


async def _state(tx: Connection, asked: Parameters, cold_before: datetime | None) -> Row:
    """Return where the vectors of the namespace are in this snapshot, and how many chunks are to be compared or too old."""
    most = (COMPARED_MAX + 1, cold_before, COUNT_MAX)
    of_texts = (asked.texts_of, asked.required)
    return await one_row(tx, QUERIES["count_chunks"], asked.ns, asked.slot, asked.source_ids, *most, *of_texts)


def _text_share(asked: Parameters, text: str | None, mode: Mode, scoring: Scoring) -> float:
    has_vector, share = asked.vector is not None, scoring.passport.text_share
    return text_share_of(mode, has_vector=has_vector, has_words=text is not None, text_share=share)


async def _with_words(
    tx: Connection, asked: Parameters, text: str | None, mode: Mode, scoring: Scoring, model: str | None
) -> tuple[Parameters, AskedWords | None]:
    """Return the search with its words, if they count; `model`: of the namespace's vectors."""
    share = _text_share(asked, text, mode, scoring)
    if text and share and is_local_basis(model or "") and not is_read(text):
        share = max(share, UNREAD_TEXT_SHARE)
    words = await words_of(tx, asked.ns, text, WORDED_MAX, text_share=share) if text and share else None
    if words is None:
        return asked, None
    return asked.weighing(words, max(share, NAMED_TEXT_SHARE) if words.has_names else share), words


def _looked_for(asked: Parameters, limit: int) -> int:
    """Return how many results each side must have so that current and former texts give `limit` together."""
    return limit if asked.texts_of is None or asked.per_source is None else 2 * limit


async def _current(tx: Connection, namespace: Row, now: Row, looking: _Looking) -> SearchResults:
    """Return the best of the current texts."""
    asked, where = looking.asked, where_of(now)
    is_exact, has_words = now["compared"] <= COMPARED_MAX, looking.words is not None
    plan = plan_mode(is_filtered=looking.is_filtered, is_exact=is_exact)
    if plan != plan_mode(is_filtered=looking.is_filtered):
        await tx.execute(f"SET LOCAL plan_cache_mode = {plan}")
    if is_exact:
        statement = statement_of_all(where, asked.per_source, has_words=has_words)
        rows = await tx.fetch(statement, *asked, looking.limit)
        return SearchResults(results_of(rows, asked, looking.scoring), is_complete=True, is_exact=True)
    near = near_statement(where, namespace, asked.per_source, has_words=has_words, is_filtered=looking.is_filtered)
    return await _by_index(tx, near, looking)


async def _with_former(tx: Connection, found: SearchResults, looking: _Looking, limit: int) -> SearchResults:
    """Return the results with the former texts that were valid at the time."""
    asked = looking.asked
    statement = statement_of_former(asked.per_source, has_words=looking.words is not None)
    former = results_of(await tx.fetch(statement, *asked, looking.limit), asked, looking.scoring)
    return replace(found, results=merged(found.results, former, asked.per_source)[:limit])


async def _with_neighbours(
    tx: Connection, asked: Parameters, results: Sequence[Result], count: int
) -> tuple[Result, ...]:
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


async def _by_index(tx: Connection, statement: str, looking: _Looking) -> SearchResults:
    """Return the best candidates of each depth, until no other chunk can be among them."""
    asked, words, depths, limit = looking.asked, looking.words, looking.depths, looking.limit
    results: tuple[Result, ...] = ()
    for depth in depths:
        if depth != depths[0]:
            await tx.execute(f"SET LOCAL hnsw.ef_search = {depth.effort:d}")
        rows = await _look(tx, statement, asked, words, depth, limit)
        results = results_of(rows, asked, looking.scoring)
        if not rows:
            return SearchResults((), is_complete=True, is_exact=False)
        if rows[0]["recent_base"] is None:  # there are no others
            return SearchResults(results, is_complete=True, is_exact=False)
        if len(results) < limit:
            continue
        is_settled = _settles(rows[0], results[-1].final, looking)
        if not is_settled(0.0):
            continue
        if words is None or is_settled(words.rest):
            return SearchResults(results, is_complete=True, is_exact=False)
        # Decided except for the words, about which a deeper read says no more.
        more = words.settling(is_settled, WORDED_MORE_MAX)
        if more is not None:  # further results only improve the last ones
            results = results_of(await _look(tx, statement, asked, more, depth, limit), asked, looking.scoring)
        return SearchResults(results, is_complete=more is not None, is_exact=False)
    return SearchResults(results, is_complete=False, is_exact=False)


async def _look(
    tx: Connection, statement: str, asked: Parameters, words: AskedWords | None, depth: Depth, limit: int
) -> list[asyncpg.Record]:
    """Return the best candidates of one depth, including those with words."""
    if words is None:
        return await tx.fetch(statement, *asked, limit, depth.nearest, depth.recent)
    worded_max = max(WORDED_MAX, words.candidates)
    by_words = (worded_max, words.all_words, words.rare_words)
    return await tx.fetch(statement, *asked, limit, depth.nearest, depth.recent, *by_words)


def _settles(looked: Row, lowest: float, looking: _Looking) -> Callable[[float], bool]:
    """Return a function: whether no other chunk scores more than the lowest result, if the words of none weigh more
    than a score.
    """
    return lambda text_score: _bound(looked, looking, text_score) <= lowest


def _bound(looked: Row, looking: _Looking, text_score: float) -> float:
    """Return the maximum score of a chunk that was not read, if its words weigh no more than this."""
    asked, cosine = looking.asked, 0.0
    if asked.vector is not None:
        nearest = looked["near_cosine"]
        cosine = 1.0 if nearest is None else max(0.0, nearest + _HALF_PRECISION)
    decay = time_decay(age_days(None, to_ms(looked["recent_base"]), looking.scoring.as_of_ms), asked.half_life_days)
    of_words = None if asked.words is None else text_score
    similarity = similarity_of(cosine, of_words, asked.text_share)
    if looking.lacks_vectors:
        similarity = max(similarity, similarity_of(None, of_words))
    return final_score(similarity, decay, asked.alpha, asked.beta) * (1 + _LAST_BITS)
