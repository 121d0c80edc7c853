"""Computes the vectors that chunks wait for: hot namespaces first (R3.13 to R3.15).

Invariants. PostgreSQL decides what waits, so a kill costs at most a batch; the topic only wakes the worker. Two workers
never compute a vector of one chunk, and a vector whose text changed meanwhile is discarded
(`connectors/chunks/waiting.py`). A text that the embedder refuses blocks no other: it is set aside for a while, and
logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from highwater.connectors.chunks import waiting as chunk_backfill
from highwater.connectors.chunks.indexes import ChunkIndexes
from highwater.connectors.chunks.statements import QUERIES
from highwater.connectors.chunks.switching import Switching
from highwater.connectors.chunks.waiting import START, Maker, SourceKey, Waiting
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.models.backlog import BACKLOG_COUNTED_MAX, Backlog
from highwater.connectors.models.embeddings import Embedder, EmbeddingError
from highwater.connectors.postgres import leases
from highwater.connectors.postgres.leases import LeaseKind
from highwater.connectors.postgres.pool import AWAY, CONFLICT, Connection, open_connection
from highwater.schemas.chunks import EMBEDDING_REQUESTED, EmbeddingRequested
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.retry import unavailable_seconds
from highwater.streams.telemetry import CHUNKS_EMBEDDED, get_log

_log = get_log("backfill")

REQUESTED = "chunks.embedding-requested"
# One call of a service: within every service's limit, and one failed call costs little. The built-in model takes some
# 30 ms for this many pages.
TEXTS_MAX = 64
# How often chunks are polled for which no request came (a restart, chunks that another worker released).
POLL_SECONDS = 5.0
# Pages whose chunks all belong to other workers that are skipped per poll.
_PAGES_MAX = 16
# A refused text is set aside: for some seconds, four times as long each time, for at most an hour; at most this many
# texts.
ASIDE_SECONDS, _ASIDE_GROWTH, _ASIDE_SECONDS_MAX, _ASIDE_MAX = 4.0, 4.0, 3_600.0, 1_000
# After this many refusals without an accepted text the service may be at fault: then texts are set aside no longer than
# this.
_REFUSED_MAX, SOON_SECONDS = 3, 60.0
# Sources that a lane remembers to have checked for reusable vectors; a forgotten one is checked once more.
_REUSED_SOURCES_MAX = 10_000
# How often namespaces with vectors of another model are searched.
_LOOK_SECONDS = 60.0


class BackfillRequests(Handler[EmbeddingRequested, None]):
    """Follows the topic: every request wakes the worker."""

    group = "backfill"
    topics = (EMBEDDING_REQUESTED,)
    batch_max = 1_000

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake

    async def prepare(self, events: Sequence[Event[EmbeddingRequested]]) -> None:
        """Wake the worker."""
        self._wake.set()

    async def apply(
        self, tx: Connection, events: Sequence[Event[EmbeddingRequested]], prepared: None
    ) -> Sequence[DeadLetter]:
        """Store only the positions: the tables hold what waits."""
        return []


class Backfill:
    """The connector: the consumer of requests, the workers, and the indexes of their vectors.

    `embedder` computes the vectors of new namespaces, and replaces those of other models; each of `older` computes only
    those of namespaces with vectors of its model.
    """

    group = BackfillRequests.group

    def __init__(self, database_url: str, around: ProcessContext, embedder: Embedder, *older: Embedder) -> None:
        wake = asyncio.Event()
        self._worker = BackfillWorker(database_url, around, embedder, wake, made_elsewhere=[o.basis_id for o in older])
        self._reporting: list[BatchConsumer | BackfillWorker] = [
            BatchConsumer(BackfillRequests(wake), around),
            self._worker,
            *(BackfillWorker(database_url, around, one, wake, takes_new=False) for one in older),
        ]
        self._indexes = ChunkIndexes(database_url, around.clock)

    @property
    def problem(self) -> str | None:
        """Return why it is not ready."""
        return next((one.problem for one in self._reporting if one.problem), None)

    @property
    def degraded(self) -> str | None:
        """Return what it waits for while the rest of the process works."""
        return next((one.degraded for one in self._reporting if one.degraded), None)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; a failure of one task ends the others."""
        async with asyncio.TaskGroup() as tasks:
            for part in (*self._reporting, self._indexes):
                tasks.create_task(part.run(stop))


class BackfillWorker:
    """Runs lanes that each process one batch after the other."""

    group = "backfill-worker"

    def __init__(
        self,
        database_url: str,
        around: ProcessContext,
        embedder: Embedder,
        wake: asyncio.Event,
        *,
        takes_new: bool = True,
        made_elsewhere: Sequence[str] = (),
    ) -> None:
        """`takes_new`: it also takes namespaces without vectors, and then those of other models. `made_elsewhere`:
        models that other workers here use.
        """
        self._made_elsewhere = frozenset(made_elsewhere)
        self._takes_new = takes_new
        self._backlog = Backlog("chunks", "backfill")
        self._url = database_url
        self._around = around
        self._embedder = embedder
        self._wake = wake
        self._maker = Maker(embedder.basis_id, None)
        self._switching = Switching(around.codec, around.clock, embedder.basis_id)
        self._reviewed_at = float("-inf")
        self._aside: dict[
            str, tuple[int, float]
        ] = {}  # by hash how often it was refused, and until when it is set aside
        self._refused: list[str] = []  # since a text was last accepted
        self._named: set[str] = set()
        self._looked_at = float("-inf")
        self.problem: str | None = None
        self.degraded: str | None = None  # the embedding service is unavailable; chunks wait, everything else continues

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._embedder.calls_at_once):
                tasks.create_task(self._lane(stop))

    async def _lane(self, stop: asyncio.Event) -> None:
        """Run one lane on its own connection, with which its claims end; waits while PostgreSQL is unavailable."""
        attempt = 0
        while not stop.is_set():
            connection = None
            try:
                connection = await open_connection(self._url, timeout=5.0, command_timeout=60.0)
                lane = _Lane(connection)
                while not stop.is_set():
                    await self._turn(lane, stop)
                    attempt = 0
            except (*AWAY, UnavailableError) as error:
                attempt += 1
                self._set_state(problem=f"PostgreSQL is unavailable: {str(error) or type(error).__name__}")
                await self._idle(stop, unavailable_seconds(attempt))
            finally:
                if connection is not None:
                    connection.terminate()  # closes at once; the claims end with the session

    async def _turn(self, lane: _Lane, stop: asyncio.Event) -> None:
        self._wake.clear()
        try:
            if self._takes_new and self._backlog.is_due():
                await self._show_backlog(lane.connection)
            done = await self._exchange(lane) + await self._batch(lane) or await self._switch(lane)
        except (UnavailableError, EmbeddingError) as error:
            lane.failures += 1
            self._set_state(degraded=f"the embedder fails: {error}")
            await self._idle(stop, unavailable_seconds(lane.failures))
            return
        except CONFLICT as error:  # another transaction interfered; the batch is repeated
            _log.info("backfill_conflict", reason=str(error))
            done = 0
        if done:
            lane.failures = 0
            self._set_state()
        else:
            if len(set(self._refused)) < _REFUSED_MAX:  # the rest are texts that are refused for their content
                self._set_state()
            await self._look_for_others(lane.connection)
            await self._idle(stop, POLL_SECONDS)

    async def _show_backlog(self, connection: Any) -> None:
        """Report how many vectors are missing, and when each switching namespace will have all of its own."""
        left = await connection.fetchval(QUERIES["chunks_behind"], BACKLOG_COUNTED_MAX)
        due = []
        for one in await self._switching.progress(connection):
            left += one.missing
            seconds = self._backlog.seconds_for(
                left
            )  # chunks without a first vector, and earlier namespaces, come first
            if seconds is not None:
                due.append((one.ns, self._around.clock() + 1_000 * seconds))
        await self._switching.note_due(connection, due)
        self._backlog.show(left)

    async def _switch(self, lane: _Lane) -> int:
        """If no chunk waits, compute a batch of vectors for namespaces of another model; return how many."""
        if not self._takes_new:
            return 0
        if monotonic_seconds() - self._reviewed_at >= _LOOK_SECONDS:
            self._reviewed_at = monotonic_seconds()
            await self._switching.review(lane.connection)
        return await self._switching.turn(
            lane.connection,
            lambda chunks: self._vectors(lane, chunks),
            most=lane.texts_max,
            aside=self._left_aside(),
            may_end=len(set(self._refused)) < _REFUSED_MAX,
        )

    async def _exchange(self, lane: _Lane) -> int:
        """Exchange a batch of vectors of a switched namespace, beside the waiting work: its searches are slower meanwhile."""
        return await self._switching.exchange(lane.connection) if self._takes_new else 0

    async def _batch(self, lane: _Lane) -> int:
        """Compute the vectors of some chunks; return how many."""
        try:
            chunks = await self._next(lane)
            if not chunks:
                return 0
            made = await self._vectors(lane, chunks)
            if made:
                await self._store(lane, chunks, made)
            return len(chunks)
        finally:
            await chunk_backfill.let_go(lane.connection, lane.claims)

    async def _next(self, lane: _Lane) -> list[Waiting]:
        """Return claimed chunks to process: hot ones if there are any."""
        now_ms, aside = self._around.clock(), self._left_aside()
        for is_hot in (True, False):
            after = lane.after[is_hot]
            is_round = after == START
            for _ in range(_PAGES_MAX):
                page = await chunk_backfill.page(
                    lane.connection,
                    self._maker,
                    is_hot=is_hot,
                    after=after,
                    aside=aside,
                    now_ms=now_ms,
                    takes_new=self._takes_new,
                )
                claimed = await chunk_backfill.claim(lane.connection, lane.claims, page.sources, chunks=lane.texts_max)
                await self._reuse(lane, claimed)
                chunks = await chunk_backfill.waiting(
                    lane.connection, claimed, most=lane.texts_max, aside=aside, now_ms=now_ms
                )
                if chunks:
                    lane.after[is_hot] = after  # a page is used until nothing of it is left for this lane
                    return chunks
                if page.is_last and is_round:
                    break
                is_round = is_round or page.is_last
                after = START if page.is_last else list(page.sources)[-1]
            lane.after[is_hot] = after
        return []

    async def _reuse(self, lane: _Lane, claimed: Sequence[SourceKey]) -> None:
        """Reuse vectors of texts that only moved within their source; each change of a source is checked once."""
        for source, offset in (await chunk_backfill.moved(lane.connection, claimed)).items():
            if lane.reused.get(source) == offset:
                continue  # a stale source has texts that never had a vector
            reused = chunk_backfill.REUSED_MAX
            while reused == chunk_backfill.REUSED_MAX:
                async with lane.connection.transaction():
                    reused = await chunk_backfill.reuse(
                        lane.connection, self._around.codec, source, self._maker.model, self._around.clock()
                    )
                CHUNKS_EMBEDDED.labels("reused").inc(reused)
            if len(lane.reused) >= _REUSED_SOURCES_MAX:
                lane.reused.clear()
            lane.reused[source] = offset

    async def _vectors(self, lane: _Lane, chunks: Sequence[Waiting]) -> list[bytes]:
        """Return vectors of texts, one for equal texts; none if the only text was refused, which is then set aside.

        A service does not say which of several texts it refuses: after a failure fewer are sent, down to one.
        """
        places = {text: place for place, text in enumerate(dict.fromkeys(chunk.text for chunk in chunks))}
        try:
            with self._backlog.making(len(chunks)):
                made = await self._embedder.embed(list(places))
        except (UnavailableError, EmbeddingError):
            if len(chunks) == 1:
                self._set_aside(chunks[0])
            lane.texts_max = max(1, len(chunks) // 2)
            raise
        lane.texts_max = min(TEXTS_MAX, lane.texts_max * 2)
        self._take_up([chunk.content_hash for chunk in chunks])
        self._maker = self._maker._replace(dimensions=len(made[0]) // 4)
        return [made[places[chunk.text]] for chunk in chunks]

    async def _store(self, lane: _Lane, chunks: Sequence[Waiting], made: Sequence[bytes]) -> None:
        async with lane.connection.transaction():
            stored = await chunk_backfill.store(
                lane.connection, self._around.codec, chunks, made, self._maker.model, self._around.clock()
            )
        CHUNKS_EMBEDDED.labels("stored").inc(stored)
        CHUNKS_EMBEDDED.labels("late").inc(len(chunks) - stored)
        if stored < len(chunks):
            _log.info("vectors_discarded", count=len(chunks) - stored, reason="their texts have changed meanwhile")

    def _set_aside(self, chunk: Waiting) -> None:
        now = monotonic_seconds()
        times = self._aside.pop(chunk.content_hash, (0, 0.0))[0] + 1
        seconds = min(_ASIDE_SECONDS_MAX, ASIDE_SECONDS * _ASIDE_GROWTH ** (times - 1))
        self._aside[chunk.content_hash] = (times, now + seconds)
        self._refused = [*self._refused[1 - _ASIDE_MAX :], chunk.content_hash]
        if len(self._refused) >= _REFUSED_MAX:
            for content_hash in self._refused:
                if content_hash in self._aside:
                    refusals, until = self._aside[content_hash]
                    self._aside[content_hash] = (refusals, min(until, now + SOON_SECONDS))
        if len(self._aside) > _ASIDE_MAX:
            self._aside.pop(next(iter(self._aside)))
        _log.warning("chunk_skipped", source="|".join(chunk.source), chunk_no=chunk.chunk_no, times=times)

    def _take_up(self, taken: Sequence[str]) -> None:
        """Note that the embedder works; accepted texts are no longer set aside."""
        self._refused.clear()
        for content_hash in taken:
            self._aside.pop(content_hash, None)

    def _left_aside(self) -> list[str]:
        now = monotonic_seconds()
        return [content_hash for content_hash, (_, until) in self._aside.items() if until > now]

    async def _look_for_others(self, connection: Any) -> None:
        """Log the namespaces whose chunks wait for vectors that are never computed here."""
        if monotonic_seconds() - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = monotonic_seconds()
        if not self._takes_new:
            return
        await leases.drop_ended(connection, LeaseKind.CHUNK_SOURCE)  # claims of killed lanes
        for row in await connection.fetch(QUERIES["namespaces_not_filled"], *self._maker):
            if row["ns"] not in self._named and row["embedding_model"] not in self._made_elsewhere:
                self._named.add(row["ns"])
                _log.warning(
                    "namespace_not_filled",
                    ns=row["ns"],
                    vectors_of=row["embedding_model"],
                    dimensions=row["dimensions"],
                    embedder=self._maker.model,
                    remedy="set HIGHWATER_EMBEDDINGS_* to what its vectors are of, or ingest it into another namespace",
                )

    async def _idle(self, stop: asyncio.Event, seconds: float) -> None:
        """Wait this long, or until a request comes or `stop` is set."""
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._wake)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    def _set_state(self, *, problem: str | None = None, degraded: str | None = None) -> None:
        if (problem, degraded) != (self.problem, self.degraded):
            reason = problem or degraded
            if reason is None:
                _log.info("backfill_running")
            else:
                _log.warning("backfill_paused", reason=reason[:300])
            self.problem, self.degraded = problem, degraded


class _Lane:
    """A lane's connection and claims, its place among the chunks, and how many texts it sends at a time."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.claims = chunk_backfill.claims()
        self.after: dict[bool, SourceKey] = {True: START, False: START}
        self.texts_max = TEXTS_MAX
        self.reused: dict[SourceKey, int] = {}  # by source the last change that was checked for reusable vectors
        self.failures = 0
