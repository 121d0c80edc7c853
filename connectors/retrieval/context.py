"""Chunks as context for a question: those of open namespaces for a query, those of its documents for a deck.

Invariants. A user gets nothing from a namespace that is not open, except from documents that the user names and owns.
Vectors are compared only with vectors of the same model; without one, and while the embedder is unavailable, only words
are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.models.embedding_calls import CountedEmbedder, Work
from highwater.connectors.postgres.pool import Row, reading
from highwater.connectors.retrieval.asked import QuestionVector
from highwater.connectors.retrieval.results import Result
from highwater.connectors.retrieval.search import RESULTS_MAX, NothingToCompareError, search
from highwater.connectors.retrieval.statements import QUERIES
from highwater.streams.chunks.scoring import Mode

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

# Open namespaces that a query searches; each search takes some milliseconds.
NAMESPACES_MAX = 8


class ChunkContext:
    """Searches for the writers of answers. `embedder` None: words only. The cost of a vector is attributed to the work
    it is for.
    """

    def __init__(self, pool: Pool, embedder: CountedEmbedder | None = None) -> None:
        self._pool = pool
        self._embedder = embedder

    def asked(self, query: str, work: Work) -> QuestionVector:
        """Return the vector of a question, for this and other searches."""
        return QuestionVector(self._embedder, query, work)

    async def of_query(self, asked: QuestionVector, words: Sequence[str], *, limit: int, as_of_ms: int) -> list[Result]:
        """Return chunks of open namespaces that have some of the words, the best of each namespace.

        A search always finds something; chunks without any of the words are left out, as for insights.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        async with reading(self._pool) as tx:
            namespaces = await tx.fetch(QUERIES["open_namespaces"], NAMESPACES_MAX)
        vector = await asked.of_model(_models_of(namespaces))
        found: list[Result] = []
        for namespace in namespaces:
            results = await self._search(namespace, vector, " ".join(words), limit=limit, as_of_ms=as_of_ms)
            found += [result for result in results if result.text_score]
        return found

    async def closed(self) -> list[str]:
        """Return the namespaces with chunks that no query may read.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        async with reading(self._pool) as tx:
            return [row["ns"] for row in await tx.fetch(QUERIES["closed_namespaces"])]

    async def of_documents(
        self, document_ids: Sequence[str], wanted: str, work: Work, *, characters_max: int, as_of_ms: int
    ) -> tuple[frozenset[str], list[Result]]:
        """Return which of these documents were ingested as a whole, and their best chunks, in the order of documents.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        async with reading(self._pool) as tx:
            rows = await tx.fetch(QUERIES["places_of_documents"], list(document_ids))
        vector = await self.asked(wanted, work).of_model(_models_of(rows))
        found: list[Result] = []
        ingested: set[str] = set()
        for (_, slot), group in groupby(sorted(rows, key=_place), key=_place):
            of_place = list(group)
            results = await self._search(
                of_place[0],
                vector,
                wanted,
                limit=RESULTS_MAX,
                as_of_ms=as_of_ms,
                slot=slot,
                source_ids=[row["source_id"] for row in of_place],
            )
            found += results
            # If there are more results than the limit, a document without one has worse chunks; otherwise it has no
            # live ones.
            is_cut = len(results) == RESULTS_MAX
            ingested |= {row["source_id"] for row in of_place} if is_cut else {one.source_id for one in results}
        found.sort(key=lambda result: -result.final)
        kept = _fitting(found, characters_max)
        order = {document_id: number for number, document_id in enumerate(document_ids)}
        kept.sort(key=lambda result: (order[result.source_id], result.chunk_no))
        return frozenset(ingested), kept

    async def _search(self, namespace: Row, vector: bytes | None, words: str, **asked: Any) -> tuple[Result, ...]:
        of_model = vector if self._is_of_model(namespace) else None
        if of_model is not None and len(of_model) != 4 * (namespace["dimensions"] or 0):
            of_model = None  # the service was reconfigured to another vector length under the same name
        try:
            found = await search(self._pool, namespace, q_vector=of_model, words=words, mode=Mode.HYBRID, **asked)
        except NothingToCompareError:  # a question of punctuation only finds nothing
            return ()
        return found.results

    def _is_of_model(self, namespace: Row) -> bool:
        return self._embedder is not None and namespace["embedding_model"] == self._embedder.basis_id


def _models_of(namespaces: Sequence[Row]) -> set[str]:
    return {namespace["embedding_model"] for namespace in namespaces}


def _place(row: Row) -> tuple[str, str]:
    return row["ns"], row["slot"]


def _fitting(results: Sequence[Result], characters_max: int) -> list[Result]:
    """Return the first that fit together."""
    kept, left = [], characters_max
    for result in results:
        left -= len(result.content) + len(result.title or "") + 1
        if left < 0:
            break
        kept.append(result)
    return kept
