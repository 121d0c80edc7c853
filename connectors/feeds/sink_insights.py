"""The sink of insights: one row per insight, a dense `seq` per channel, one `channel-advanced` per channel and batch.

Storing an insight costs the same however many users subscribe to its channel: no user's data is read or written
(R0.13). A retraction costs by the documents that hold the insight, which stop showing it in the same transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import asyncpg

from highwater.connectors.feeds import redactions
from highwater.connectors.feeds.bases import ActiveBasis, Embedders, read_active, share_active
from highwater.connectors.feeds.contents import stored_contents
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.handler import Handler
from highwater.connectors.kafka.records import DeadLetter, Event, Record, of_topic
from highwater.connectors.postgres.binary_copy import Columns, Rows
from highwater.connectors.postgres.pool import Connection, Row, one_row, transaction
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
from highwater.streams.clock import Clock, to_datetime
from highwater.streams.feeds.embedding import Float32Array, TextEmbedder
from highwater.streams.feeds.repeats import Stored, find_conflicts
from highwater.streams.feeds.sequencing import Fate, Numbered, number_insights
from highwater.streams.feeds.validation import are_plain_insights
from highwater.streams.languages import text_language
from highwater.streams.telemetry import INSIGHT_CONFLICTS
from highwater.streams.validation import check_event

_SOURCE = "/connectors/sinks/insights"
InsightEvent: TypeAlias = InsightIngested | InsightRetracted
# By embedding model version: index in the batch's ingested -> little-endian float32.
Vectors = Mapping[str, Mapping[int, memoryview]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Valid events of a batch, ids, channels and rows of its insights, complete except for their numbers, and refused
    events.

    Everything that can be computed before the transaction: PostgreSQL waits for what the loop computes within it.
    """

    ingested: list[Event[InsightIngested]]
    ids: list[str]
    channels: list[str]
    active: ActiveBasis
    rows: Rows
    retracted: list[Event[InsightRetracted]]
    dead: list[DeadLetter]


class InsightsSink(Handler[InsightEvent, Prepared]):
    """If a service computes the active vectors, they are added later, and rows without one hold back their channel."""

    group = "insights"
    linger_seconds = 0.05  # what follows from an insight waits for a tick, twenty times as long
    topics = (INSIGHT_INGESTED, INSIGHT_RETRACTED)
    # One transaction's fixed cost (locks, round trips, fsync: about 10 ms) spread over enough rows to vanish.
    batch_max = 5_000
    prepares_ahead = True  # `apply` checks again which version is active

    def __init__(
        self,
        codec: Codec,
        clock: Clock,
        pool: asyncpg.Pool[asyncpg.Record],
        *,
        dimensions: int,
        redaction: Sequence[RedactionStep] = (redactions.redact_feeds,),
    ) -> None:
        """`redaction` removes retracted insights from the documents of each slice; `dimensions` of a vector."""
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
        is_plain = are_plain_insights([event.value for event in of_topic(events, INSIGHT_INGESTED)])
        for event in events:
            if is_plain and event.record.topic == INSIGHT_INGESTED:
                good.append(event)
                continue
            try:
                check_event(event.record.topic, event.value, embedding_dimensions=self._dimensions)
            except InvalidEventError as error:
                dead.append(DeadLetter(event.record, error.reason, str(error)))
                continue
            good.append(event)
        ingested = of_topic(good, INSIGHT_INGESTED)
        # A batch mixes partitions as they were fetched; their numbers follow (partition, offset).
        ingested.sort(key=lambda event: (event.record.partition, event.record.offset))
        ids = [event.value["insight_id"] for event in ingested]
        channels = [event.value["channel_id"] for event in ingested]
        rows = _made_rows(ingested, active, embedders)
        return Prepared(ingested, ids, channels, active, rows, of_topic(good, INSIGHT_RETRACTED), dead)

    async def apply(
        self, tx: Connection, events: Sequence[Event[InsightEvent]], prepared: Prepared
    ) -> Sequence[DeadLetter]:
        """Read heads and known ids under the channels' locks, assign numbers, store."""
        if prepared.ingested:
            prepared = await self._in_active_basis(tx, prepared)
        heads = await _lock_channels(
            tx, {*prepared.channels, *(event.value["channel_id"] for event in prepared.retracted)}
        )
        refused = await self._ingest(tx, prepared, heads) if prepared.ingested else []
        if prepared.retracted:
            withdrawn = await redactions.to_withdraw(tx, prepared.retracted)
            await self._retract(tx, prepared.retracted)
            await self._redact(tx, withdrawn)
        return [*prepared.dead, *refused]

    async def _redact(self, tx: Connection, withdrawn: Sequence[Withdrawn]) -> None:
        """Remove retracted insights from every document that holds them."""
        now_ms = self._clock()
        for redact in self._redaction if withdrawn else ():
            await redact(tx, self._codec, withdrawn, now_ms)

    async def _in_active_basis(self, tx: Connection, prepared: Prepared) -> Prepared:
        """Return the batch with vectors of the version that stays active until it is stored; embeds again if the
        version changed meanwhile.
        """
        active = await share_active(tx)
        if active == prepared.active:
            return prepared
        embedders = await self._embedders.of(tx, active)
        return replace(
            prepared, active=active, rows=await asyncio.to_thread(_made_rows, prepared.ingested, active, embedders)
        )

    async def _ingest(self, tx: Connection, prepared: Prepared, heads: Mapping[str, int]) -> list[DeadLetter]:
        ingested, ids = prepared.ingested, prepared.ids
        stored = await stored_contents(tx, ids)
        known = {insight_id: one.content.channel_id for insight_id, one in stored.items()}

        numbered = number_insights(zip(ids, prepared.channels, strict=True), known=known, heads=heads)

        await self._tell_conflicts(tx, prepared, stored)
        if numbered.heads:
            seqs = [seq if isinstance(seq, int) else None for seq in numbered.seqs]
            await prepared.rows.copy_into(tx, "insights", seqs)
            await self._advance(tx, prepared, numbered)
            # Usually there are none for any insight, and then no id is sent.
            if (await one_row(tx, QUERIES["any_early_retraction"]))["found"]:
                await _apply_early_retractions(tx, [i for i, seq in zip(ids, seqs, strict=True) if seq is not None])
        return [
            DeadLetter(event.record, fate.value, f"{insight_id} belongs to {known.get(insight_id, 'another channel')}")
            for event, insight_id, fate in zip(ingested, ids, numbered.seqs, strict=True)
            if fate is Fate.OTHER_CHANNEL
        ]

    async def _tell_conflicts(self, tx: Connection, prepared: Prepared, stored: Mapping[str, Stored]) -> None:
        """Report insights that came again with other content to their producers: nothing of the repeat is stored."""
        if not stored and len(set(prepared.ids)) == len(prepared.ids):
            return
        times = Counter(prepared.ids)
        ingested = [
            event
            for event, insight_id in zip(prepared.ingested, prepared.ids, strict=True)
            if insight_id in stored or times[insight_id] > 1
        ]
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

    async def _advance(self, tx: Connection, prepared: Prepared, numbered: Numbered) -> None:
        newest_ts: dict[str, int] = {}
        arrived: dict[str, int] = {}
        cause: dict[str, Record] = {}
        for channel, (record, value), seq in zip(prepared.channels, prepared.ingested, numbered.seqs, strict=True):
            if isinstance(seq, int):
                ts, arrived_ms = value["ts"], record.arrived_ms
                if channel not in cause or ts > newest_ts[channel]:
                    newest_ts[channel] = ts
                if channel not in cause or arrived_ms > arrived[channel]:
                    arrived[channel] = arrived_ms
                cause[channel] = record
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
                    caused_by=cause[channel].position,
                )
                for channel in moved
            ],
        )

    async def _retract(self, tx: Connection, retracted: Sequence[Event[InsightRetracted]]) -> None:
        """Retract insights, and publish that their channels changed: users who show one are due for a rebuild."""
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


def _made_rows(
    ingested: Sequence[Event[InsightIngested]], active: ActiveBasis, embedders: Mapping[str, TextEmbedder | None]
) -> Rows:
    return encoded_rows(ingested, active, made_vectors(ingested, embedders))


def made_vectors(ingested: Sequence[Event[InsightIngested]], embedders: Mapping[str, TextEmbedder | None]) -> Vectors:
    """Compute missing vectors, in each built-in version."""
    missing = [i for i, event in enumerate(ingested) if event.value["embedding"] is None]
    texts = [ingested[i].value["text"] for i in missing]
    return {
        basis_id: dict(zip(missing, _rows_of(embedder.embed(texts)), strict=True))
        for basis_id, embedder in embedders.items()
        if embedder is not None
    }


def _rows_of(vectors: Float32Array) -> list[memoryview]:
    """Return each vector as little-endian float32."""
    raw, width = memoryview(vectors.astype("<f4", copy=False).tobytes()), 4 * vectors.shape[1]
    return [raw[i : i + width] for i in range(0, len(raw), width)]


def encoded_rows(ingested: Sequence[Event[InsightIngested]], active: ActiveBasis, vectors: Vectors) -> Rows:
    """Return the stored values of insights, complete except for their numbers."""
    records, values = [event.record for event in ingested], [event.value for event in ingested]
    columns = Columns(len(ingested), numbered="seq")
    columns.add_times("ts", [value["ts"] for value in values])
    columns.add_times("arrived_at", [record.arrived_ms for record in records])
    columns.add_numbers("source_partition", [record.partition for record in records], width=4)
    columns.add_numbers("source_offset", [record.offset for record in records], width=8)
    columns.add_values("insight_id", [value["insight_id"].encode() for value in values])
    columns.add_values("channel_id", [value["channel_id"].encode() for value in values])
    columns.add_values("text", [_encoded(value["text"]) for value in values])
    columns.add_values("url", [_encoded(value["url"]) for value in values])
    columns.add_values("language", [_encoded(text_language(value["text"] or "")) for value in values])
    _add_vectors(columns, values, active, vectors)
    return columns.encoded()


def _add_vectors(columns: Columns, values: Sequence[InsightIngested], active: ActiveBasis, vectors: Vectors) -> None:
    """Add each insight's vector with its version, and the vector of the next version; without one it is added later."""
    basis_id, next_id = active.basis_id.encode(), _encoded(active.next_id)
    made, following = vectors.get(active.basis_id, {}), vectors.get(active.next_id or "", {})
    own = [value["embedding"] for value in values]
    if all(vector is None for vector in own):
        columns.add_values("embedding", [made.get(i) for i in range(len(values))])
        columns.add_constant("embedding_model", basis_id if made else None)
        columns.add_values("next_embedding", [following.get(i) for i in range(len(values))])
        columns.add_constant("next_model", next_id)
        return
    models = [_encoded(value["embedding_model"]) for value in values]
    columns.add_values("embedding", [made.get(i) if vector is None else vector for i, vector in enumerate(own)])
    columns.add_values(
        "embedding_model",
        [
            model if vector is not None else basis_id if i in made else None
            for i, (vector, model) in enumerate(zip(own, models, strict=True))
        ],
    )
    columns.add_values("next_embedding", [following.get(i) if vector is None else None for i, vector in enumerate(own)])
    columns.add_values("next_model", [next_id if vector is None else None for vector in own])


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


async def _lock_channels(tx: Connection, channels: Collection[str]) -> dict[str, int]:
    """Lock the channels of a batch in one order, and return their heads.

    Those of retractions too: an insight and its retraction, stored concurrently by two sinks, would not see each other.
    """
    ordered = sorted(channels)
    await tx.execute(QUERIES["ensure_channels"], ordered)
    return {row["channel_id"]: row["current_seq"] for row in await tx.fetch(QUERIES["lock_channels"], ordered)}


async def _apply_early_retractions(tx: Connection, insight_ids: Sequence[str]) -> None:
    early = await tx.fetch(QUERIES["take_early_retractions"], insight_ids)
    if early:
        columns = [[row[name] for row in early] for name in ("insight_id", "channel_id", "retracted_at")]
        await tx.execute(QUERIES["retract_early_insights"], *columns)


async def _retract(tx: Connection, retracted: Sequence[Event[InsightRetracted]], now_ms: int) -> Sequence[Row]:
    """Mark insights as retracted; one that is unknown is remembered and marked when it comes. Returns the affected channels."""
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
