"""Switches namespaces to the vectors of another model: in the background, in batches, and the namespace as a whole at
the end.

Invariants. Vectors of two models are never compared: the new ones wait in a table of their own, which no search reads.
The switch changes only the row of the namespace: from then on searches use the vectors of that table, and of `chunks`
only those of the new model (`connectors/retrieval/search.py`, which reads both in one snapshot). Then batches exchange
the vectors, under the locks of their sources, so a writer waits at most for one batch; search results stay the same.
No search of a large namespace is without an index meanwhile: that table has one before the switch, and keeps all
vectors, also those that writers add (a trigger of `chunks`), until `chunks` has its own. `indexes.py` builds both; the
switch and its end wait for it (`index_awaited`).

Chunks without a first vector come first. A namespace with producers' vectors keeps its model: only the producer can
make vectors like them. One lane at a time does this, in all processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from highwater.connectors.chunks.indexes import DIMENSIONS_MAX
from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.chunks.waiting import TEXT_CHARACTERS_MAX, SourceKey, Waiting
from highwater.connectors.pages.versions import bump
from highwater.connectors.postgres import vectors
from highwater.connectors.postgres.leases import LeaseKind, Leases
from highwater.connectors.retrieval.search import COMPARED_MAX
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from highwater.streams.clock import Clock, to_datetime, to_ms_or_none
from highwater.streams.telemetry import get_log

_log = get_log("backfill")

_SOURCE = "/connectors/workers/backfill"
# The size of a batch of chunks: one call of an embedder, and the time to store it.
_MAKER_SECONDS = 60.0
# An index is dropped when nothing reads it any more.
_SWITCH_SECONDS_MAX = 600.0
# Chunks whose vectors one transaction exchanges: each is rewritten with its words, so that writers of their sources
# wait some 50 ms on an idle machine.
EXCHANGED_MAX = 256
# New entries of the word index are merged after this many batches, under no lock: otherwise the transaction that
# happens to fill their list does it, which took seconds on a busy machine.
_BATCHES_SORTED_IN = 4
# Rows of other tables, which nothing waits for, in one statement.
_CLEARED_MAX = 1_000
_SUBMITTED = "chunks.chunk-submitted"

# Makes vectors of texts; none if the only text was refused.
Make = Callable[[Sequence[Waiting]], Awaitable[list[bytes]]]


class Place(NamedTuple):
    """A chunk of a namespace, in the reading order."""

    slot: str
    source_id: str
    chunk_no: int


_START = Place("", "", -1)


class Lacking(NamedTuple):
    """A chunk without a vector of the next model; `vector_text` is the digest of its text."""

    waiting: Waiting
    vector_text: bytes


class Progress(NamedTuple):
    """A namespace in progress, and its number of missing vectors."""

    ns: str
    missing: int


class Behind(NamedTuple):
    """Namespaces in progress, missing vectors, and when the last is expected; None: unknown."""

    namespaces: int
    missing: int
    due_ms: int | None


async def behind(connection: Any) -> Behind:
    """Return the remaining work for all namespaces and all next models."""
    row = await connection.fetchrow(QUERIES["switches_behind"])
    return Behind(row["namespaces"], row["missing"], to_ms_or_none(row["due_at"]))


class Switching:
    """The work of one worker for namespaces that switch to its model."""

    def __init__(self, codec: Codec, clock: Clock, model: str) -> None:
        self._codec = codec
        self._clock = clock
        self._model = model
        self._after: dict[str, Place] = {}
        self._exchanged: dict[str, Place] = {}
        self._batches = 0

    async def progress(self, connection: Any) -> list[Progress]:
        """Return namespaces in progress, hot ones first."""
        rows = await connection.fetch(QUERIES["switches_in_progress"], self._model)
        return [Progress(row["ns"], row["missing"]) for row in rows]

    async def note_due(self, connection: Any, due_ms: Sequence[tuple[str, int]]) -> None:
        """Store when each namespace will have all its vectors."""
        names, at = [ns for ns, _ in due_ms], [to_datetime(due) for _, due in due_ms]
        await connection.execute(QUERIES["note_switch_due"], names, at)

    async def review(self, connection: Any) -> None:
        """Begin new switches, and end obsolete ones: the model was changed back, or producers sent vectors."""
        for row in await connection.fetch(QUERIES["switches_to_change"], self._model):
            if row["is_to_begin"]:
                await connection.execute(QUERIES["begin_switch"], self._model, row["ns"])
                _log.info("switch_begun", ns=row["ns"], vectors_of=row["embedding_model"], next_model=self._model)
            else:
                while await connection.fetchval(QUERIES["forget_next_vectors"], row["ns"], _CLEARED_MAX):
                    pass
                await connection.execute(QUERIES["end_switch"], row["ns"])
                _log.info("switch_abandoned", ns=row["ns"], vectors_of=row["embedding_model"])

    async def turn(self, connection: Any, make: Make, *, most: int, aside: Sequence[str], may_end: bool) -> int:
        """Process one batch of the first namespace with missing vectors, or switch a complete one; return the number of
        chunks.

        `may_end`: the remaining chunks were permanently refused, so there is nothing to wait for.
        """
        making = Leases(LeaseKind.CHUNK_MODELS, seconds=_MAKER_SECONDS)
        if not await making.take(connection, ["maker"]):
            return 0
        try:
            for row in await connection.fetch(QUERIES["namespaces_to_switch"], self._model):
                ns: str = row["ns"]
                lacking = await self._lacking(connection, ns, most, aside)
                if lacking:
                    made = await make([chunk.waiting for chunk in lacking])
                    await self._store(connection, ns, lacking, made)
                    return len(lacking)
                if may_end and await self._switch(connection, ns):
                    return 1
            return 0
        finally:
            await making.release(connection)

    async def exchange(self, connection: Any) -> int:
        """Exchange one batch of the vectors of a switched namespace, for any model; return the number of rows.

        A namespace that waits for its index, at the end, delays no other.
        """
        found = await connection.fetch(QUERIES["namespaces_to_exchange"])
        making = Leases(LeaseKind.CHUNK_MODELS, seconds=_MAKER_SECONDS)
        if not found or not await making.take(connection, ["maker"]):
            return 0
        try:
            for row in found:
                if not row["vectors_beside"]:
                    done: int = await connection.fetchval(QUERIES["forget_next_vectors"], row["ns"], _CLEARED_MAX)
                elif row["index_awaited"] and not await self._is_indexed(connection, row["ns"]):
                    continue
                else:
                    done = await self._exchange_batch(connection, row["ns"], may_have_index=row["index_awaited"])
                if done:
                    return done
            return 0
        finally:
            await making.release(connection)

    async def _exchange_batch(self, connection: Any, ns: str, *, may_have_index: bool) -> int:
        if ns not in self._exchanged and not may_have_index and not await self._drop_indexes(connection, ns):
            return 0
        after = self._exchanged.get(ns, _START)
        for place in dict.fromkeys((after, _START)):
            rows = await connection.fetch(QUERIES["chunks_to_exchange"], ns, *place, EXCHANGED_MAX)
            if rows:
                columns = [list(column) for column in zip(*rows, strict=True)]
                async with connection.transaction():
                    await connection.execute(QUERIES["hold_sources_to_fill"], [ns] * len(rows), *columns[:2])
                    await connection.execute(QUERIES["exchange_vectors"], ns, *columns)
                self._exchanged[ns] = Place(*rows[-1])
                self._batches += 1
                if self._batches % _BATCHES_SORTED_IN == 0:
                    await connection.execute(QUERIES["sort_in_words"])
                return len(rows)
        self._exchanged.pop(ns, None)
        count: int = await connection.fetchval(QUERIES["drop_former_vectors"], ns, _CLEARED_MAX)
        if count:
            return count
        if not await self._is_indexed(connection, ns):
            await connection.execute(QUERIES["await_index"], ns)
            return 0
        await connection.execute(QUERIES["end_exchange"], ns)
        _log.info("vectors_exchanged", ns=ns)
        return 1

    async def _is_indexed(self, connection: Any, ns: str) -> bool:
        """Return whether searches of the vectors in `chunks` have the index that they need."""
        return bool(await connection.fetchval(QUERIES["is_indexed"], ns, COMPARED_MAX, DIMENSIONS_MAX))

    async def _drop_indexes(self, connection: Any, ns: str) -> bool:
        """Drop indexes that an interrupted switch left behind; False: not now."""
        if not await connection.fetch(QUERIES["indexes_of_namespace"], ns, DIMENSIONS_MAX, self._model):
            return True
        indexing = Leases(LeaseKind.CHUNK_INDEXES, seconds=_SWITCH_SECONDS_MAX)
        if not await indexing.take(connection, ["keeper"]):
            return False
        try:
            for index in await connection.fetch(QUERIES["indexes_of_namespace"], ns, DIMENSIONS_MAX, self._model):
                await connection.execute(index["drop_statement"], timeout=_SWITCH_SECONDS_MAX)
            return True
        finally:
            await indexing.release(connection)

    async def _lacking(self, connection: Any, ns: str, most: int, aside: Sequence[str]) -> list[Lacking]:
        """Return the next chunks without a vector, starting again from the beginning after the last; none if none is left."""
        after = self._after.get(ns, _START)
        for place in dict.fromkeys((after, _START)):
            rows = await connection.fetch(
                QUERIES["chunks_to_switch"],
                self._model, ns, to_datetime(self._clock()), *place, TEXT_CHARACTERS_MAX, most, list(aside),
            )  # fmt: skip
            if rows:
                last = rows[-1]
                self._after[ns] = Place(last["slot"], last["source_id"], last["chunk_no"])
                return [
                    Lacking(
                        Waiting(
                            SourceKey(ns, row["slot"], row["source_id"]),
                            row["chunk_no"],
                            row["content_hash"],
                            row["text"],
                        ),
                        row["vector_text"],
                    )
                    for row in rows
                ]
        self._after.pop(ns, None)
        return []

    async def _store(self, connection: Any, ns: str, lacking: Sequence[Lacking], made: Sequence[bytes]) -> None:
        if not made:
            return
        rows = [
            (one.waiting.source.slot, one.waiting.source.source_id, one.waiting.chunk_no, one.vector_text, vector)
            for one, vector in zip(lacking, made, strict=True)
        ]
        await vectors.enable(connection)
        columns = [list(column) for column in zip(*rows, strict=True)]
        async with connection.transaction():
            if await connection.fetchrow(QUERIES["hold_namespace_in_switch"], self._model, ns) is None:
                return  # given up, or switched by another worker
            await connection.execute(QUERIES["hold_sources_to_fill"], [ns] * len(rows), *columns[:2])
            await connection.execute(QUERIES["store_next_vectors"], self._model, ns, *columns)

    async def _switch(self, connection: Any, ns: str) -> bool:
        """Switch the searches of a namespace to the vectors of the model; False: not now, or not at all.

        The old index serves until the switch. Only one of vectors of another length goes before it: chunks could not get
        their vectors beside it.
        """
        if not await connection.fetchval(QUERIES["is_indexed_beside"], self._model, ns, COMPARED_MAX, DIMENSIONS_MAX):
            await connection.execute(QUERIES["await_index"], ns)
            return False
        indexing = Leases(LeaseKind.CHUNK_INDEXES, seconds=_SWITCH_SECONDS_MAX)
        if not await indexing.take(connection, ["keeper"]):
            return False  # an index is being built; the old vectors serve
        try:
            old = await connection.fetch(QUERIES["indexes_of_namespace"], ns, DIMENSIONS_MAX, self._model)
            for index in old:
                if not index["takes_next_vectors"]:
                    await connection.execute(index["drop_statement"], timeout=_SWITCH_SECONDS_MAX)
            last = await connection.fetchrow(QUERIES["last_event_of_namespace"], ns)
            async with connection.transaction():
                is_switched = await self._change_model(connection, ns, last)
            for index in old if is_switched else ():
                await connection.execute(index["drop_statement"], timeout=_SWITCH_SECONDS_MAX)
            return is_switched
        finally:
            await indexing.release(connection)

    async def _change_model(self, tx: Any, ns: str, last: Any) -> bool:
        """Store the change, with a new version of the namespace; `last`: the event that last wrote one of its texts."""
        if await tx.fetchrow(QUERIES["hold_namespace_to_switch"], self._model, ns) is None:
            return False
        if await tx.fetchval(QUERIES["has_sent_vectors"], ns):
            return False  # it keeps its model; `review` gives it up
        await tx.execute(QUERIES["name_next_model"], self._model, ns)
        if last is not None:
            behind = Position(_SUBMITTED, last["source_partition"], last["source_offset"])
            await bump(
                tx, self._codec, f"ns:{ns}",
                caused_by=str(behind), now_ms=self._clock(), source=_SOURCE, reason="model_switched",
            )  # fmt: skip
        _log.info("switch_ended", ns=ns, vectors_of=self._model)
        return True
