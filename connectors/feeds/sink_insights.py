"""The sink of insights: one row an insight, a dense `seq` per channel, one `channel-advanced` per channel and batch.

Storing an insight costs the same however many subscribe to its channel: nothing of a user is read or written (R0.13). Taking one
back costs by the documents that hold it, which stop showing it in the same transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.feeds import redactions
from highwater.connectors.feeds.bases import ActiveBasis, Embedders, read_active, share_active
from highwater.connectors.feeds.contents import stored_contents
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event, of_topic
from highwater.connectors.postgres.pool import Connection, Row, transaction
from highwater.connectors.redaction import RedactionStep, Withdrawn
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.feeds import (
    CHANNEL_ADVANCED,
    INSIGHT_CONFLICTED,
    INSIGHT_INGESTED,
    INSIGHT_RETRACTED,
    ChannelAdvanced,
    InsightConflicted,
    InsightIngested,
    InsightRetracted,
)
from highwater.schemas.positions import Position
from highwater.streams.clock import Clock, to_datetime
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.repeats import Stored, find_conflicts
from highwater.streams.feeds.sequencing import Fate, Numbered, number_insights
from highwater.streams.telemetry import INSIGHT_CONFLICTS
from highwater.streams.validation import check_event

_SOURCE = "/connectors/sinks/insights"
InsightEvent: TypeAlias = InsightIngested | InsightRetracted
_COLUMNS = [
    "insight_id", "channel_id", "seq", "ts", "arrived_at", "text", "url", "embedding", "embedding_model",
    "next_embedding", "next_model", "source_partition", "source_offset",
]  # fmt: skip


# By basis id: index in the batch's ingested -> little-endian float32.
Vectors = Mapping[str, Mapping[int, bytes]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Valid events of a batch, the vectors made for those that came without one, and what is refused."""

    ingested: list[Event[InsightIngested]]
    active: ActiveBasis
    vectors: Vectors
    retracted: list[Event[InsightRetracted]]
    dead: list[DeadLetter]


class InsightsSink(Handler[InsightEvent, Prepared]):
    """Where the active basis is a service's, vectors are made later, and rows without one hold back their channel."""

    group = "insights"
    topics = (INSIGHT_INGESTED, INSIGHT_RETRACTED)
    # One transaction's fixed cost (locks, round trips, fsync: about 10 ms) spread over enough rows to vanish.
    batch_max = 5_000

    def __init__(
        self,
        codec: Codec,
        clock: Clock,
        pool: asyncpg.Pool[asyncpg.Record],
        *,
        dimensions: int,
        redaction: Sequence[RedactionStep] = (redactions.redact_feeds,),
    ) -> None:
        """`redaction` takes retracted insights out of the documents of each household; `dimensions` of a vector."""
        self._redaction = redaction
        self._codec = codec
        self._clock = clock
        self._pool = pool
        self._embedders = Embedders()
        self._dimensions = dimensions

    async def prepare(self, events: Sequence[Event[InsightEvent]]) -> Prepared:
        """Check each event, and embed texts where that is a pure function (in a thread: it takes CPU, not I/O)."""
        async with transaction(self._pool) as tx:
            active = await read_active(tx)
            embedders = await self._embedders.of(tx, active)
        return await asyncio.to_thread(self._prepare, events, active, embedders)

    def _prepare(
        self, events: Sequence[Event[InsightEvent]], active: ActiveBasis, embedders: Mapping[str, TextEmbedder | None]
    ) -> Prepared:
        good: list[Event[InsightEvent]] = []
        dead: list[DeadLetter] = []
        for event in events:
            try:
                check_event(event.record.topic, event.value, embedding_dimensions=self._dimensions)
            except InvalidEventError as error:
                dead.append(DeadLetter(event.record, error.reason, str(error)))
                continue
            good.append(event)
        ingested = of_topic(good, INSIGHT_INGESTED)
        # A batch mixes partitions as they were fetched; their numbers follow (partition, offset).
        ingested.sort(key=lambda event: (event.record.partition, event.record.offset))
        return Prepared(ingested, active, _embed(ingested, embedders), of_topic(good, INSIGHT_RETRACTED), dead)

    async def apply(
        self, tx: Connection, events: Sequence[Event[InsightEvent]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Gather heads and known ids under the channels' locks, number, store."""
        if prepared.ingested:
            prepared = await self._in_active_basis(tx, prepared)
        heads = await _lock_channels(tx, [*prepared.ingested, *prepared.retracted])
        refused = await self._ingest(tx, prepared, heads) if prepared.ingested else []
        if prepared.retracted:
            withdrawn = await redactions.to_withdraw(tx, prepared.retracted)
            await self._retract(tx, prepared.retracted)
            await self._redact(tx, withdrawn)
        return [*prepared.dead, *refused]

    async def _redact(self, tx: Connection, withdrawn: Sequence[Withdrawn]) -> None:
        """Take what was retracted out of every document that holds it."""
        now_ms = self._clock()
        for redact in self._redaction if withdrawn else ():
            await redact(tx, self._codec, withdrawn, now_ms)

    async def _in_active_basis(self, tx: Connection, prepared: Prepared) -> Prepared:
        """The batch in the basis that stays active until it is stored; embedded again if another became so meanwhile."""
        active = await share_active(tx)
        if active == prepared.active:
            return prepared
        embedders = await self._embedders.of(tx, active)
        vectors = await asyncio.to_thread(_embed, prepared.ingested, embedders)
        return replace(prepared, active=active, vectors=vectors)

    async def _ingest(self, tx: Connection, prepared: Prepared, heads: Mapping[str, int]) -> list[DeadLetter]:
        ingested = prepared.ingested
        ids = [event.value["insight_id"] for event in ingested]
        stored = await stored_contents(tx, ids)
        known = {insight_id: one.content.channel_id for insight_id, one in stored.items()}

        pairs = [(event.value["insight_id"], event.value["channel_id"]) for event in ingested]
        numbered = number_insights(pairs, known=known, heads=heads)

        await self._tell_conflicts(tx, ingested, stored)
        if numbered.heads:
            await tx.copy_records_to_table("insights", records=self._rows(prepared, numbered), columns=_COLUMNS)
            await self._advance(tx, ingested, numbered)
            await _apply_early_retractions(
                tx, [i for i, seq in zip(ids, numbered.seqs, strict=True) if isinstance(seq, int)]
            )
        return [
            DeadLetter(
                event.record,
                fate.value,
                f"{event.value['insight_id']} belongs to {known.get(event.value['insight_id'], 'another channel')}",
            )
            for event, fate in zip(ingested, numbered.seqs, strict=True)
            if fate is Fate.OTHER_CHANNEL
        ]

    async def _tell_conflicts(
        self, tx: Connection, ingested: Sequence[Event[InsightIngested]], stored: Mapping[str, Stored]
    ) -> None:
        """Tell the producers of insights that came again with other content: nothing of it is stored."""
        conflicts = find_conflicts([(event.value, event.record.position) for event in ingested], stored)
        if not conflicts:
            return
        now_ms = self._clock()
        told = [(ingested[one.place], one) for one in conflicts]
        rows = [
            outbox.event_row(
                self._codec,
                INSIGHT_CONFLICTED,
                InsightConflicted(
                    insight_id=event.value["insight_id"],
                    channel_id=event.value["channel_id"],
                    position=str(event.record.position),
                    first_position=str(conflict.first),
                    fields=list(conflict.fields),
                    at=now_ms,
                ),
                source="/connectors/sinks/insights",
                now_ms=now_ms,
                caused_by=event.record.position,
            )
            for event, conflict in told
        ]
        await outbox.add(tx, rows)
        INSIGHT_CONFLICTS.inc(len(rows))

    def _rows(self, prepared: Prepared, numbered: Numbered) -> list[tuple[Any, ...]]:
        rows = []
        for i, (event, seq) in enumerate(zip(prepared.ingested, numbered.seqs, strict=True)):
            if not isinstance(seq, int):
                continue
            record, value = event
            rows.append((
                value["insight_id"], value["channel_id"], seq, to_datetime(value["ts"]), to_datetime(record.arrived_ms),
                value["text"], value["url"], *_stored_vectors(prepared, i), record.partition, record.offset,
            ))  # fmt: skip
        return rows

    async def _advance(self, tx: Connection, ingested: Sequence[Event[InsightIngested]], numbered: Numbered) -> None:
        newest_ts: dict[str, int] = {}
        arrived: dict[str, int] = {}
        cause: dict[str, Position] = {}
        for (record, value), seq in zip(ingested, numbered.seqs, strict=True):
            if isinstance(seq, int):
                channel = value["channel_id"]
                newest_ts[channel] = max(value["ts"], newest_ts.get(channel, value["ts"]))
                arrived[channel] = max(record.arrived_ms, arrived.get(channel, 0))
                cause[channel] = record.position
        moved = sorted(numbered.heads)
        await tx.execute(
            QUERIES["advance_channels"],
            moved,
            [numbered.heads[channel] for channel in moved],
            [to_datetime(newest_ts[channel]) for channel in moved],
            [to_datetime(arrived[channel]) for channel in moved],
        )
        now_ms = self._clock()
        await outbox.add(
            tx,
            [
                outbox.event_row(
                    self._codec,
                    CHANNEL_ADVANCED,
                    ChannelAdvanced(
                        channel_id=channel, head=numbered.heads[channel], arrived_at=arrived[channel], retractions=0
                    ),
                    source=_SOURCE,
                    now_ms=now_ms,
                    caused_by=cause[channel],
                )
                for channel in moved
            ],
        )

    async def _retract(self, tx: Connection, retracted: Sequence[Event[InsightRetracted]]) -> None:
        """Take insights back, and tell that their channels are others now: who shows one is due for a rebuild."""
        now_ms = self._clock()
        last = {event.value["channel_id"]: event.record for event in retracted}
        rows = []
        for row in await _retract(tx, retracted, now_ms):
            channel, record = row["channel_id"], last[row["channel_id"]]
            advanced = ChannelAdvanced(
                channel_id=channel,
                head=row["current_seq"],
                arrived_at=record.arrived_ms,
                retractions=row["retractions"],
            )
            told = outbox.event_row(
                self._codec, CHANNEL_ADVANCED, advanced, source=_SOURCE, now_ms=now_ms, caused_by=record.position
            )
            rows.append(told)
        await outbox.add(tx, rows)


def _embed(ingested: Sequence[Event[InsightIngested]], embedders: Mapping[str, TextEmbedder | None]) -> Vectors:
    missing = [i for i, event in enumerate(ingested) if event.value["embedding"] is None]
    texts = [ingested[i].value["text"] or "" for i in missing]
    made = {basis_id: embedder.embed(texts) for basis_id, embedder in embedders.items() if embedder is not None}
    return {
        basis_id: {i: vectors[row].astype("<f4").tobytes() for row, i in enumerate(missing)}
        for basis_id, vectors in made.items()
    }


def _stored_vectors(prepared: Prepared, i: int) -> tuple[bytes | None, str | None, bytes | None, str | None]:
    """Of an insight the vector and its basis, and those in the next basis; without its vector that is still to come."""
    value, active = prepared.ingested[i].value, prepared.active
    if value["embedding"] is not None:
        return value["embedding"], value["embedding_model"], None, None
    vector = prepared.vectors.get(active.basis_id, {}).get(i)
    following = None if active.next_id is None else prepared.vectors.get(active.next_id, {}).get(i)
    return vector, None if vector is None else active.basis_id, following, active.next_id


async def _lock_channels(tx: Connection, events: Sequence[Event[InsightEvent]]) -> dict[str, int]:
    """Lock the channels of a batch in one order, and return their heads.

    Those of retractions too: an insight and its retraction, stored by two sinks at the same moment, would not see each other.
    """
    channels = sorted({event.value["channel_id"] for event in events})
    await tx.execute(QUERIES["ensure_channels"], channels)
    return {row["channel_id"]: row["current_seq"] for row in await tx.fetch(QUERIES["lock_channels"], channels)}


async def _apply_early_retractions(tx: Connection, insight_ids: Sequence[str]) -> None:
    early = await tx.fetch(QUERIES["take_early_retractions"], insight_ids)
    if early:
        columns = [[row[name] for row in early] for name in ("insight_id", "channel_id", "retracted_at")]
        await tx.execute(QUERIES["retract_early_insights"], *columns)


async def _retract(tx: Connection, retracted: Sequence[Event[InsightRetracted]], now_ms: int) -> Sequence[Row]:
    """Mark insights as taken back; one that is not here yet is remembered and marked when it comes. The channels concerned."""
    ids = [event.value["insight_id"] for event in retracted]
    columns: list[list[Any]] = [
        ids,
        [event.value["channel_id"] for event in retracted],
        [to_datetime(now_ms)] * len(retracted),
    ]
    concerned = await tx.fetch(QUERIES["retract_insights"], *columns)
    known = {row["insight_id"] for row in await tx.fetch(QUERIES["known_insights"], ids)}
    early = [i for i, insight_id in enumerate(ids) if insight_id not in known]
    if early:
        await tx.execute(QUERIES["remember_retractions"], *([column[i] for i in early] for column in columns))
    return concerned
