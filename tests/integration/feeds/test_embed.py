"""The embed worker against a scripted service: vectors are filled in, and texts that cannot be embedded are given up in time."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from highwater.connectors.feeds.worker_embed import EmbedWorker
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.reading import open_reader, read_record
from highwater.connectors.models import embedding_service
from highwater.connectors.models.embedding_service import RemoteEmbedder
from highwater.schemas.feeds import INSIGHT_INGESTED
from highwater.streams.clock import to_datetime
from highwater.streams.retry import RetryPolicy
from tests.conftest import Stack
from tests.integration.connecting import fresh, running, send, until
from tests.integration.databases import own_database
from tests.integration.feeds.embedding_server import DIMENSIONS, Service


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts and calls in tenths of seconds."""
    monkeypatch.setattr(embedding_service, "CALL_SECONDS_MAX", 0.3)
    monkeypatch.setattr(embedding_service, "MODEL_CALL", RetryPolicy(first_ms=10, most_ms=20, attempts_max=2))


@dataclass
class Case:
    """A worker with a clock of its own, and a channel."""

    stack: Stack
    context: ProcessContext
    service: Service
    channel: str = field(default_factory=lambda: fresh("emb"))
    now_ms: int = 0

    def worker(self) -> EmbedWorker:
        """The worker; a row may wait for 60 s."""
        embedder = RemoteEmbedder(self.service.url, None, model="m", dimensions=DIMENSIONS)
        return EmbedWorker(replace(self.context, clock=lambda: self.now_ms), embedder, wait_seconds=60)

    async def insight(self, text: str) -> tuple[str, bytes]:
        """An insight in the log and its row without a vector; returns its id and bytes."""
        name = fresh("i")
        nothing = dict.fromkeys(("url", "embedding", "embedding_model"))
        value = {**nothing, "insight_id": name, "channel_id": self.channel, "ts": 1, "text": text}
        encoded = self.context.codec.encode(INSIGHT_INGESTED, value)
        (place,) = await asyncio.to_thread(
            send, self.stack.kafka, INSIGHT_INGESTED, [(b"own-key", encoded, [("h", b"1")])]
        )
        with closing(open_reader(self.context.client)) as reader:
            record = await asyncio.to_thread(read_record, reader, place)
        assert record is not None
        self.now_ms = record.arrived_ms
        await self.context.pool.execute(
            "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, source_partition, source_offset)"
            " VALUES ($1, $2, (SELECT count(*) + 1 FROM insights WHERE channel_id = $2), $3, $3, $4, $5, $6)",
            name, self.channel, to_datetime(self.now_ms), text, place.partition, place.offset,
        )  # fmt: skip
        return name, encoded

    async def row(self, name: str) -> Any:
        """The row of an insight."""
        return await self.context.pool.fetchrow("SELECT * FROM insights WHERE insight_id = $1", name)


@pytest.fixture
async def case(stack: Stack, service: Service) -> AsyncIterator[Case]:
    """A store in which the service's basis is active."""
    async with own_database(stack) as context:
        await context.pool.execute("INSERT INTO bases VALUES ('m@384', 'remote', '', 0, 'epoch')")
        await context.pool.execute("UPDATE active_basis SET basis_id = 'm@384'")
        yield Case(stack, context, service)


async def test_vectors_are_filled_in(case: Case):
    """Each waiting row gets the service's vector, of unit length, with its basis id; an empty text is requested too."""
    first, second = (await case.insight("some text"))[0], (await case.insight(""))[0]

    async def filled() -> bool:
        return None not in [(await case.row(name))["embedding"] for name in (first, second)]

    async with running(case.worker()):
        await until(filled, "both have vectors")
    row = await case.row(first)
    vector = np.frombuffer(row["embedding"], dtype="<f4")
    assert (
        len(vector), float(np.linalg.norm(vector)), row["embedding_model"], row["excluded_at"],
    ) == (DIMENSIONS, 1.0, "m@384", None)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "says"),
    [("short", "shape"), ("failing", "the embedding service fails"), ("silent", "the embedding service fails")],
)
async def test_a_service_that_fails_holds_back_and_is_given_up(case: Case, mode: str, says: str):
    """Wrong dimensions, a 500 or no answer: degraded with a reason, the row waits; past the wait it is excluded and dead."""
    case.service.mode = mode
    name, encoded = await case.insight("some text")
    worker = case.worker()
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    await until(lambda: worker.degraded, "it says so")
    assert (worker.problem, says in (worker.degraded or "")) == (None, True)
    row = await case.row(name)
    assert (row["embedding"], row["excluded_at"]) == (None, None)
    case.now_ms += 61_000

    async def excluded() -> bool:
        return (await case.row(name))["excluded_at"] is not None

    await until(excluded, "it is given up")
    stop.set()
    await task
    origin = f"{INSIGHT_INGESTED}/{row['source_partition']}/{row['source_offset']}"
    letters = await case.context.pool.fetch(
        "SELECT * FROM outbox WHERE topic = $1 AND value = $2", f"{INSIGHT_INGESTED}.dlq", encoded
    )
    assert [letter["key"] for letter in letters] == [b"own-key"]
    headers = {key: base64.b64decode(value) for key, value in json.loads(letters[0]["headers"])}
    assert (b"1", b"embedding_missing", origin.encode(), b"embed") == tuple(
        headers[key] for key in ("h", "dlq_reason", "dlq_origin", "dlq_group")
    )


@pytest.mark.parametrize("moves_on", [1, 1_000_000], ids=["another record", "past the end"])
async def test_a_record_that_the_log_no_longer_has_is_nobody_elses(case: Case, moves_on: int):
    """The row whose record is gone is given up without a letter; the record in its place is not taken for it."""
    case.service.mode = "failing"
    name, _ = await case.insight("some text")
    row = await case.row(name)
    place = row["source_partition"]
    await asyncio.to_thread(send, case.stack.kafka, INSIGHT_INGESTED, [(b"other", b"of another", [], place)])
    await case.context.pool.execute("UPDATE insights SET source_offset = source_offset + $1", moves_on)
    case.now_ms += 61_000

    async def excluded() -> bool:
        return (await case.row(name))["excluded_at"] is not None

    async with running(case.worker()):
        await until(excluded, "it is given up")
    assert (
        await case.context.pool.fetchval("SELECT count(*) FROM outbox WHERE topic = $1", f"{INSIGHT_INGESTED}.dlq") == 0
    )


async def test_it_recovers(case: Case):
    """A service that recovers before the wait is over fills the waiting rows."""
    case.service.mode = "failing"
    name, _ = await case.insight("some text")
    worker = case.worker()
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    await until(lambda: worker.degraded, "it says so")
    case.service.mode = "good"

    async def filled() -> bool:
        return (await case.row(name))["embedding"] is not None

    await until(filled, "it has its vector")
    await until(lambda: worker.degraded is None, "it goes on")
    stop.set()
    await task


async def test_without_a_service_it_is_idle_and_ready(case: Case):
    """Where the sink embeds, the worker does nothing and is ready."""
    async with running(EmbedWorker(case.context, None, wait_seconds=1)):
        assert case.service.asked == []
