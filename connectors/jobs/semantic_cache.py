"""The semantic cache: decks by their question (R2.24 to R2.26).

Invariant: an answer is reused only within its organization, for the same documents, and for a question that asks the
same (`streams.jobs.questions`): near vectors find candidates and decide nothing. It is an accelerator: missing or
unavailable data is a miss, never an error. A hit does not extend its TTL, and an entry whose Redis key has expired is a
miss, even if the index has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import asyncpg
import numpy as np
import orjson

from highwater.connectors.jobs import redactions
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.models.embedding_calls import CountedEmbedder, Work
from highwater.connectors.postgres.pool import reading, transaction
from highwater.connectors.redis.keys import SEMANTIC_CACHE_ENTRY, SEMANTIC_CACHE_SECONDS, key
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import to_datetime
from highwater.streams.jobs.questions import may_share_answer
from highwater.streams.telemetry import SEMANTIC_CACHE, get_log

# R2.25.
COSINE_MIN = 0.95
# Vectors in a comparison: 1,000 of 384 numbers are 1.5 MB and half a millisecond; with more questions per day, older
# ones are missed.
VECTORS_MAX = 1_000
# This many of the nearest are compared by their texts: one question that differs in a number has many neighbours.
_CANDIDATES_MAX = 16
# A service computes a vector in a tenth of that; after a longer wait, asking the model is better.
_SECONDS_MAX = 5.0
# R2.24: this many hexadecimal digits of SHA-256, of numbers rounded far enough that the same model gives the same on
# another machine.
_HASH_DIGITS, _DECIMALS = 32, 4

_log = get_log("semantic-cache")

# In one step: a counter must not be created alone if the entry expires meanwhile.
_HIT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
redis.call('HINCRBY', KEYS[1], 'hit_count', 1)
return redis.call('HGET', KEYS[1], 'response')
"""


class Lookup(NamedTuple):
    """A lookup: a query of an organization about the documents of `sources_hash`.

    `user_id` and `documents`: the owner and the sources, for withdrawals; they are not part of the lookup.
    """

    organization_id: str
    sources_hash: str
    query: str
    user_id: str = ""
    documents: tuple[str, ...] = ()
    job_id: str = ""


class SemanticCache:
    """Lookups and stores; none of it raises."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], link: RedisLink, embedder: CountedEmbedder) -> None:
        self._pool = pool
        self._link = link
        self._embedder = embedder

    async def lookup(self, query: Lookup, now_ms: int) -> dict[str, Any] | None:
        """Return the response to the nearest equivalent query with a cosine of at least 0.95; None if there is none."""
        try:
            async with asyncio.timeout(_SECONDS_MAX):
                found = await self._lookup(query, now_ms)
        except (HighwaterError, TimeoutError, ValueError) as error:
            _log.warning("not_looked_up", reason=str(error)[:300] or type(error).__name__)
            SEMANTIC_CACHE.labels("failed").inc()
            return None
        SEMANTIC_CACHE.labels("miss" if found is None else "hit").inc()
        return found

    async def store(
        self, query: Lookup, response: dict[str, Any], *, tokens_saved: int, provider: str, now_ms: int
    ) -> None:
        """Keep a response for a day; one to exactly the same query is replaced."""
        try:
            async with asyncio.timeout(_SECONDS_MAX):
                await self._store(query, response, tokens_saved, provider, now_ms)
        except (HighwaterError, TimeoutError) as error:
            _log.warning("not_stored", reason=str(error)[:300] or type(error).__name__)
            SEMANTIC_CACHE.labels("failed").inc()
            return
        SEMANTIC_CACHE.labels("stored").inc()

    async def _lookup(self, query: Lookup, now_ms: int) -> dict[str, Any] | None:
        self._link.require()  # before a service computes a vector
        vector = await self._embedder.embed(query.query, Work(query.job_id, None))
        since = to_datetime(now_ms - SEMANTIC_CACHE_SECONDS * 1000)
        async with reading(self._pool) as tx:
            rows = await tx.fetch(
                QUERIES["semantic_vectors_of"],
                query.organization_id, query.sources_hash, self._embedder.basis_id, since, VECTORS_MAX,
            )  # fmt: skip
        for place in nearest(vector, [row["embedding"] for row in rows])[:_CANDIDATES_MAX]:
            name = key(SEMANTIC_CACHE_ENTRY, hash=rows[place]["hash"])
            answered = await self._link.run(self._link.require().hget(name, "original_query"))
            if answered is None or not may_share_answer(query.query, answered.decode()):
                continue
            response = await self._link.run(self._link.require().eval(_HIT, 1, name))
            if response is not None:
                found: dict[str, Any] = orjson.loads(response)
                return found
        return None

    async def _store(
        self, query: Lookup, response: dict[str, Any], tokens_saved: int, provider: str, now_ms: int
    ) -> None:
        vector = await self._embedder.embed(query.query, Work(query.job_id, None))
        entry_hash = entry_hash_of(query, vector)
        name = key(SEMANTIC_CACHE_ENTRY, hash=entry_hash)
        fields = {
            "query_embedding_hash": embedding_hash(vector),
            "original_query": query.query,
            "response": orjson.dumps(response),
            "tokens_saved": tokens_saved,
            "llm_provider": provider,
            "created_at": iso_from_ms(now_ms),
            "hit_count": 0,
        }
        pipe = self._link.require().pipeline(transaction=True)
        pipe.delete(name)
        pipe.hset(name, mapping=fields)
        pipe.expire(name, SEMANTIC_CACHE_SECONDS)
        await self._link.run(pipe.execute())
        # After the entry: a vector without one is a miss, an entry without its vector is never found.
        given = (query.organization_id, query.sources_hash, self._embedder.basis_id, vector, to_datetime(now_ms))
        async with transaction(self._pool) as tx:
            told = orjson.dumps(response).decode()
            if await redactions.tag_kept(tx, entry_hash, query.user_id, query.documents, told):
                await tx.execute(QUERIES["store_semantic_vector"], entry_hash, *given)
            await tx.execute(QUERIES["prune_semantic_vectors"], to_datetime(now_ms - SEMANTIC_CACHE_SECONDS * 1000))
            withdrawn = [row["hash"] for row in await tx.fetch(QUERIES["withdrawn_semantic_vectors"])]
            for one in withdrawn:
                await self._link.run(self._link.require().delete(key(SEMANTIC_CACHE_ENTRY, hash=one)))
            await tx.execute(QUERIES["forget_semantic_vectors"], withdrawn)


def nearest(vector: bytes, others: Sequence[bytes]) -> list[int]:
    """Return the places of unit vectors at a cosine of `COSINE_MIN` or more, the nearest first."""
    if not others:
        return []
    wanted = np.frombuffer(vector, "<f4").astype(np.float64)
    cosines = np.frombuffer(b"".join(others), "<f4").reshape(len(others), -1).astype(np.float64) @ wanted
    return [int(place) for place in np.argsort(-cosines, kind="stable") if cosines[place] >= COSINE_MIN]


def embedding_hash(vector: bytes) -> str:
    """Return the first 32 hexadecimal digits of SHA-256 of a rounded vector (R2.24)."""
    return sha256(_rounded(vector)).hexdigest()[:_HASH_DIGITS]


def entry_hash_of(query: Lookup, vector: bytes) -> str:
    """Return the same with the organization and the documents, so that no two of them share a key (R2.26)."""
    scope = orjson.dumps([query.organization_id, query.sources_hash])
    return sha256(scope + _rounded(vector)).hexdigest()[:_HASH_DIGITS]


def _rounded(vector: bytes) -> bytes:
    whole = np.rint(np.frombuffer(vector, "<f4").astype(np.float64) * 10**_DECIMALS)
    return bytes(whole.astype("<i4"))
