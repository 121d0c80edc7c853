"""Makes the missing embeddings through a service, and gives up on those that wait too long (R0.14).

What is missing is what PostgreSQL says is missing, so a crash repeats at most one call. A row that is given up is
excluded and dead-lettered with its original bytes; it no longer holds back its channel's snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from connectors import outbox
from connectors.kafka.records import DeadLetter, Record, dead_letter_row, record_of
from connectors.llm.embeddings import EmbeddingError, RemoteEmbedder
from connectors.stores.postgres import QUERIES, transaction
from schemas.errors import UnavailableError
from streams.clock import Clock, to_datetime, to_ms
from streams.telemetry import get_log

log = get_log("embed")

INGESTED = "feeds.insight-ingested"
# One call of the service: within every service's limit, and one failed call costs little.
_TEXTS_MAX = 64
_POLL_SECONDS = 0.5
_READ_SECONDS = 10.0


class EmbedWorker:
    """Polls for rows without a vector. Idle, and ready, where the built-in embedder does the work in the sink."""

    group = "embed"

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        embedder: RemoteEmbedder | None,
        client: Mapping[str, str],
        clock: Clock,
        *,
        wait_seconds: float,
    ) -> None:
        self._pool = pool
        self._embedder = embedder
        self._client = client
        self._clock = clock
        self._wait_ms = int(wait_seconds * 1000)
        self.problem: str | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Embed until `stop` is set."""
        if self._embedder is None:
            await stop.wait()
            return
        while not stop.is_set():
            done = 0
            try:
                done = await self._embed_some(self._embedder)
                self._set_problem(None)
            except (UnavailableError, EmbeddingError) as error:
                self._set_problem(str(error))
            if not done:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _POLL_SECONDS)

    async def _embed_some(self, embedder: RemoteEmbedder) -> int:
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(QUERIES["unembedded_insights"], _TEXTS_MAX)
        now_ms = self._clock()
        late = [row for row in rows if now_ms - to_ms(row["arrived_at"]) > self._wait_ms]
        if late:
            await self._give_up(late, now_ms)
        waiting = [row for row in rows if row not in late]
        if not waiting:
            return len(late)
        vectors = await embedder.embed([row["text"] or "" for row in waiting])
        async with transaction(self._pool) as tx:
            await tx.execute(QUERIES["set_embeddings"], [row["insight_id"] for row in waiting], vectors, embedder.model)
        return len(rows)

    async def _give_up(self, late: Sequence[Any], now_ms: int) -> None:
        records = await asyncio.to_thread(self._read_originals, late)
        async with transaction(self._pool) as tx:
            gone = await tx.fetch(QUERIES["exclude_insights"], [row["insight_id"] for row in late], to_datetime(now_ms))
            excluded = {row["insight_id"] for row in gone}
            letters = [
                DeadLetter(record, "embedding_missing", f"no embedding after {self._wait_ms / 1000:.0f} s")
                for row, record in zip(late, records, strict=True)
                if row["insight_id"] in excluded
            ]
            await outbox.add(tx, [dead_letter_row(letter, group=self.group, now_ms=now_ms) for letter in letters])
        log.warning("insights_excluded", count=len(excluded))

    def _read_originals(self, late: Sequence[Any]) -> list[Record]:
        """The records behind rows, from the log: a dead letter carries the original bytes."""
        consumer = Consumer({**self._client, "group.id": "highwater-embed-reader", "enable.auto.commit": False})
        try:
            return [self._read(consumer, row["source_partition"], row["source_offset"]) for row in late]
        except KafkaException as error:
            raise UnavailableError(f"Kafka is away: {error.args[0].str()}") from error
        finally:
            consumer.close()

    @staticmethod
    def _read(consumer: Consumer, partition: int, offset: int) -> Record:
        consumer.assign([TopicPartition(INGESTED, partition, offset)])
        message = consumer.poll(_READ_SECONDS)
        if message is None or message.error() is not None:
            raise UnavailableError(f"{INGESTED}/{partition}/{offset} cannot be read")
        return record_of(message)

    def _set_problem(self, problem: str | None) -> None:
        if problem != self.problem:
            (log.warning if problem else log.info)("embed_paused" if problem else "embed_running", reason=problem)
        self.problem = problem
