"""Searches of insights for a question: by its words, rare ones weighing more, and by meaning, combined as for chunks.

Invariants. The candidates are limited: the newest insights with each word, and the newest of the most recently active
channels by their vectors. A vector is compared only with those of its own model version; without any, words decide. A
distant insight is not found. For a question in a language that the model does not read, its words suffice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import asyncpg
import numpy as np

from highwater.connectors.postgres.pool import Connection, Row, reading
from highwater.connectors.retrieval.asked import QuestionVector
from highwater.connectors.retrieval.statements import QUERIES
from highwater.schemas.feeds import INSIGHT_INGESTED
from highwater.schemas.positions import Position
from highwater.streams.chunks.scoring import answer_similarity, word_weights
from highwater.streams.clock import to_ms
from highwater.streams.feeds.basis import Basis
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.languages import COMPOUNDING, languages_asked, text_language
from highwater.streams.models.wordpiece import reads_english
from highwater.streams.queries.context import Matching
from highwater.streams.queries.words import subject_words, words_asked, words_of

# Candidates for each word: the newest, as a stream is rarely asked for its oldest entries.
INSIGHTS_PER_WORD = 100
# Vectors compared for a question: 6 MB are read for it, in some 15 ms.
VECTORS_COMPARED_MAX = 4_096
# Of channels that the question does not name, the most recently active; each gets an equal share of the vectors.
_CHANNELS_MAX = 256
# The nearest by their vectors whose words are weighed too.
_NEAREST_MAX = 50
# A word that names more channels than this does not count as a channel's name.
_CHANNELS_NAMED_MAX = 20
_NEWEST_OF_NAMED_MAX = 12
_NAME_PART = re.compile(r"[^\W_]+")
# The minimum share of the weight of the question's words, or of words and vectors together, for a citable source. From
# 0.30 to 0.40 the number of right citations is equal; from 0.35 most unanswerable questions find no source
# (docs/benchmarks/answers.md).
SHARE_MIN, SIMILARITY_MIN = 0.2, 0.35


class FoundInsight(NamedTuple):
    """An insight near a question; `similarity` 0 to 1, `share` of the weight of the question's words that it contains."""

    insight_id: str
    channel_id: str
    ts_ms: int
    text: str
    position: str
    similarity: float
    share: float


class Words(NamedTuple):
    """The words of a question: groups of synonyms, by their stems, and how many insights contain each."""

    holders: Mapping[frozenset[str], int]
    total: int

    def weights(self, own: Collection[frozenset[str]]) -> dict[frozenset[str], float]:
        """Return the weight of each group, together 1. A word in no insight counts only if it is in the question itself
        (`own`).
        """
        groups = [group for group, count in self.holders.items() if count or group in own]
        found = word_weights([self.holders[one] for one in groups], self.total) if groups else []
        return dict(zip(groups, found, strict=True))


class InsightSearch:
    """Searches insights."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._pool = pool
        self._own: tuple[str, TextEmbedder] | None = None

    async def of_query(
        self, query: str, words: Sequence[str], asked: QuestionVector, channels: Sequence[str] | None, *, limit: int
    ) -> list[FoundInsight]:
        """Return the insights that answer best, the best first; of these channels, or of all if there are none.

        A word that names a channel also finds the channel's insights about the other words, and its newest ones.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        language = text_language(query)
        basis, vector = await self._vector(query, asked)
        async with reading(self._pool) as tx:
            named = await _named(tx, words, channels)
            held, ids = await self._with_words(tx, words, channels, named, language)
            ids |= await self._nearest(tx, channels, basis, vector)
            rows = await tx.fetch(QUERIES["insights_to_score"], list(ids), basis)
        own = frozenset(words_asked(word, language) for word in subject_words(query))
        return scored(held, rows, vector, own=own, language=language, is_read=reads_english(query))[:limit]

    async def count(self, words: Sequence[str], channels: Sequence[str] | None) -> Matching | None:
        """Return how many insights contain all of these words that occur anywhere; words that name a channel select
        where to count. None: no word.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        async with reading(self._pool) as tx:
            named = await _named(tx, words, channels)
            of = [row["channel_id"] for row in named] or channels
            names = {name for row in named for name in _names(row["channel_id"])}
            others = [word for word in words if word.casefold() not in names]
            languages = languages_asked(text_language(" ".join(words)))
            found = await tx.fetch(QUERIES["insights_with_words"], others, of, 1, languages, [])
            had = [others[row["place"] - 1] for row in found]
            if not had:
                return None
            return Matching(
                int(await tx.fetchval(QUERIES["count_insights_with_words"], had, of, languages)), tuple(had)
            )

    async def _with_words(
        self,
        tx: Connection,
        words: Sequence[str],
        channels: Sequence[str] | None,
        named: Sequence[Row],
        language: str | None,
    ) -> tuple[Words, set[str]]:
        of_named = [row["channel_id"] for row in named]
        languages, compounds = languages_asked(language), sorted(COMPOUNDING)
        found = await tx.fetch(
            QUERIES["insights_with_words"], list(words), channels, INSIGHTS_PER_WORD, languages, compounds
        )
        total = int(await tx.fetchval(QUERIES["count_insights"], channels))
        holders: dict[frozenset[str], int] = {stems: 0 for word in words if (stems := words_asked(word, language))}
        for row in found:
            stems = words_asked(words[row["place"] - 1], language)
            if stems:
                holders[stems] = max(holders[stems], row["holders"])
        for word in words:
            seen = sum(row["current_seq"] for row in named if word.casefold() in _names(row["channel_id"]))
            if stems := words_asked(word, language):
                holders[stems] = max(holders[stems], seen)
        ids = {insight_id for row in found for insight_id in row["insight_ids"]}
        if of_named:
            more = await tx.fetch(
                QUERIES["insights_with_words"], list(words), of_named, INSIGHTS_PER_WORD, languages, compounds
            )
            ids |= {insight_id for row in more for insight_id in row["insight_ids"]}
            newest = await tx.fetch(QUERIES["newest_insights"], of_named, _NEWEST_OF_NAMED_MAX)
            ids |= {row["insight_id"] for row in newest}
        return Words(holders, total), ids

    async def _nearest(
        self, tx: Connection, channels: Sequence[str] | None, basis: str | None, vector: bytes | None
    ) -> set[str]:
        if vector is None:
            return set()
        count = min(_CHANNELS_MAX, len(channels) if channels else int(await tx.fetchval(QUERIES["count_channels"])))
        share = max(1, VECTORS_COMPARED_MAX // max(1, count))
        rows = await tx.fetch(QUERIES["newest_vectors"], channels, _CHANNELS_MAX, share, basis)
        kept = [row for row in rows if len(row["vector"]) == len(vector)]
        if not kept:
            return set()
        cosines = _matrix([row["vector"] for row in kept]) @ np.frombuffer(vector, "<f4")
        order = np.argsort(-cosines, kind="stable")[:_NEAREST_MAX]
        return {kept[place]["insight_id"] for place in order.tolist()}

    async def _vector(self, query: str, asked: QuestionVector) -> tuple[str | None, bytes | None]:
        """Return the model version for comparing the question, and its vector: a model's, else that of the built-in embedder."""
        async with reading(self._pool) as tx:
            bases = await tx.fetch(QUERIES["bases_of_insights"])
            vector = await asked.of_model({row["basis_id"] for row in bases})
            if vector is not None:
                return asked.basis_id, vector
            own = next((row["basis_id"] for row in bases if row["is_own"] and row["is_active"]), None)
            if own is None:
                return None, None
            if self._own is None or self._own[0] != own:
                content = await tx.fetchval(QUERIES["basis_content"], own)
                self._own = own, TextEmbedder(Basis.from_bytes(content, own))
        made = await asyncio.to_thread(self._own[1].embed, [query])
        return own, made[0].astype("<f4").tobytes()


def scored(
    asked: Words,
    rows: Sequence[Row],
    vector: bytes | None,
    *,
    own: Collection[frozenset[str]],
    language: str | None = None,
    is_read: bool = True,
) -> list[FoundInsight]:
    """Return insights by how well they answer, scored as chunks are; the newest of equals first.

    Words are compared as a whole and without their endings: `fixed` does not match `prefixed`. A word counts once per
    text, since insights are short. `own`: the words of the question, whose share is returned; the others are added by
    the Analyzer. `language`: of the question; `is_read`: as for `answer_similarity`.
    """
    weights = asked.weights(own)
    parts = frozenset().union(*weights)
    whole = sum(weight for group, weight in weights.items() if group in own) or 1.0
    texts = [row["text"] or "" for row in rows]
    query = None if vector is None else np.frombuffer(vector, "<f4")
    found = []
    for row, text in zip(rows, texts, strict=True):
        stems = words_of(f"{row['channel_id']} {text}", language, parts)
        has = {group: weight for group, weight in weights.items() if group <= stems}
        by_words = sum(has.values())
        held = row["vector"]
        is_comparable = query is not None and held is not None and len(held) == len(vector or b"")
        cosine = float(np.frombuffer(held, "<f4") @ query) if is_comparable and query is not None else None
        similarity = answer_similarity(cosine, by_words, is_read=is_read)
        found.append(
            FoundInsight(
                row["insight_id"],
                row["channel_id"],
                to_ms(row["ts"]),
                text,
                str(Position(INSIGHT_INGESTED, row["source_partition"], row["source_offset"])),
                round(similarity, 4),
                round(sum(weight for group, weight in has.items() if group in own) / whole, 4),
            )
        )
    return sorted(found, key=lambda one: (-one.similarity, -one.ts_ms, one.insight_id))


async def _named(tx: Connection, words: Sequence[str], channels: Sequence[str] | None) -> list[Row]:
    """Return the channels that words name; if one is named completely, channels named in part are left out."""
    found = await tx.fetch(
        QUERIES["channels_named"], [word.casefold() for word in words], channels, _CHANNELS_NAMED_MAX
    )
    return [row for row in found if row["is_whole"] or not found[0]["is_whole"]]


def _names(channel_id: str) -> set[str]:
    """Return the names of a channel: its id, its name without its owner's, and their parts."""
    name = channel_id.casefold()
    return {name, name.rpartition("/")[2], *_NAME_PART.findall(name)}


def _matrix(vectors: Sequence[bytes]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), -1)
