"""Bases on a real store: fitted when due, rolled out in the background, complete at the switch, with any process killed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from highwater.connectors.feeds import worker_embed as embed
from highwater.connectors.feeds.bases import read_active
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.feeds.windows import Span, read_dataset
from highwater.connectors.feeds.worker_embed import BasisFitError, EmbedWorker
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.models.embedding_service import RemoteEmbedder
from highwater.connectors.models.local_model import MINILM, LocalEmbedder
from highwater.connectors.postgres.leases import LeaseKind, LeaseLostError, holding
from highwater.schemas.feeds import BASIS_CHANGED, INSIGHT_INGESTED, REBUILD_DEMANDED
from highwater.streams.clock import to_datetime
from highwater.streams.feeds.basis import UNFITTED_ID, Basis
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.retry import MODEL_CALL
from highwater.streams.settings import read_settings
from tests.conftest import Stack
from tests.integration.connecting import event, fresh, in_outbox, in_transaction, running, until
from tests.integration.databases import own_database
from tests.integration.feeds.embedding_server import DIMENSIONS, Service
from tests.unit.feeds import sample

MODELS = read_settings({}).model_dir
OWN = b"\x00\x00\x80?" * DIMENSIONS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches, so that there are many of them, and short waits."""
    monkeypatch.setattr(embed, "_OWN_TEXTS_MAX", 300)
    monkeypatch.setattr(embed, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(embed, "_LOCAL_POLL_SECONDS", 0.02)
    monkeypatch.setattr(embed, "_OWN_POLL_SECONDS", 0.02)


class Store:
    """An own database with a sink, and its queries."""

    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        self.sink = InsightsSink(context.codec, context.clock, context.pool, dimensions=DIMENSIONS)
        self.channel = fresh("basis")
        self.count = 0

    def batch(self, count: int, text: str | None = None) -> list[Any]:
        """The next insights, with real texts or all with one."""
        numbers = range(self.count, self.count + count)
        self.count += count
        nothing = dict.fromkeys(("url", "embedding", "embedding_model"))
        return [
            event(INSIGHT_INGESTED, {
                **nothing, "insight_id": f"{self.channel}-{n:05d}", "channel_id": self.channel, "ts": 1_000,
                "text": text or sample.texts()[n % 3_000],
            }, offset=n)
            for n in numbers
        ]  # fmt: skip

    async def ingest(self, count: int, text: str | None = None) -> None:
        """Store insights as the sink does."""
        await in_transaction(self.context, self.sink, self.batch(count, text))

    async def ingest_foreign(self) -> None:
        """One insight whose producer sent its vector."""
        (one,) = self.batch(1)
        one.value.update(embedding=OWN, embedding_model="theirs")
        await in_transaction(self.context, self.sink, [one])

    def worker(self) -> EmbedWorker:
        """A worker with the built-in embedder."""
        return EmbedWorker(self.context, None, wait_seconds=60)

    def remote(self, url: str, model: str) -> EmbedWorker:
        """A worker with a service's model."""
        return EmbedWorker(
            self.context, RemoteEmbedder(url, None, model=model, dimensions=DIMENSIONS), wait_seconds=60
        )  # fmt: skip

    def local(self) -> EmbedWorker:
        """A worker with the model that is installed."""
        return EmbedWorker(self.context, None, local=LocalEmbedder(MODELS), wait_seconds=60)

    async def beside(self) -> int:
        """Insights that the local model has read."""
        return int(await self.context.pool.fetchval(
            "SELECT count(*) FROM insights WHERE next_model = $1 AND next_embedding IS NOT NULL", MINILM.basis_id
        ))  # fmt: skip

    async def active(self) -> str:
        """The active basis."""
        return str(await self.context.pool.fetchval("SELECT basis_id FROM active_basis"))

    async def lacking(self) -> int:
        """Insights without a vector in the active basis, those of producers aside."""
        return int(await self.context.pool.fetchval(
            "SELECT count(*) FROM insights, active_basis AS a WHERE embedding_model IS DISTINCT FROM 'theirs'"
            " AND NOT (embedding IS NOT NULL AND embedding_model = a.basis_id)"
            " AND NOT (next_embedding IS NOT NULL AND next_model IS NOT DISTINCT FROM a.basis_id)"
        ))  # fmt: skip

    async def is_settled(self) -> bool:
        """No basis is rolled out, and nothing is left to move."""
        busy = await self.context.pool.fetchval(
            "SELECT (SELECT count(*) FROM reembedding) + (SELECT count(*) FROM active_basis WHERE next_id IS NOT NULL)"
            " + (SELECT count(*) FROM insights WHERE next_model IS NOT NULL OR next_embedding IS NOT NULL)"
        )
        return bool(busy == 0)

    async def is_settled_in(self, prefix: str) -> bool:
        """Settled in a basis whose id begins so, in which every insight has its vector."""
        return (await self.active()).startswith(prefix) and await self.is_settled() and await self.lacking() == 0

    async def changes(self) -> list[dict[str, Any]]:
        """The events about bases in the outbox."""
        return await in_outbox(self.context, BASIS_CHANGED)

    async def check_vectors(self) -> None:
        """Every vector is the one that the active basis, as stored, gives for the text."""
        content = await self.context.pool.fetchval("SELECT content FROM bases JOIN active_basis USING (basis_id)")
        rows = await self.context.pool.fetch("SELECT * FROM insights WHERE embedding_model <> 'theirs'")
        made = TextEmbedder(Basis.from_bytes(content, await self.active())).embed([row["text"] for row in rows])
        stored = np.frombuffer(b"".join(row["embedding"] for row in rows), "<f4").reshape(len(rows), DIMENSIONS)
        np.testing.assert_array_equal(stored, made)


async def step(store: Store, worker: EmbedWorker) -> int:
    """One step of a worker on a connection of its own, as one that is killed right after it."""
    pool = store.context.pool
    async with pool.acquire() as tx, holding(tx, pool, LeaseKind.EMBED, "runner") as worker._lease:
        active = await read_active(tx)
        return await worker._fill(tx, active) + await worker._step(tx, active)


@asynccontextmanager
async def running_until_stopped(worker: EmbedWorker) -> AsyncIterator[asyncio.Event]:
    """A worker, ready or not, that is stopped at the end or by the event."""
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    try:
        yield stop
    finally:
        stop.set()
        await task


@pytest.fixture
async def store(stack: Stack) -> AsyncIterator[Store]:
    """An empty store."""
    async with own_database(stack) as context:
        yield Store(context)


async def test_a_basis_is_fitted_to_a_thousand_texts(store: Store):
    """At 1,000 insights, not before: every built-in vector is recomputed and moved, one event is published; producers' vectors
    are unchanged.
    """
    await store.ingest_foreign()
    await store.ingest(998)
    assert await step(store, store.worker()) == 0
    await store.ingest(252)  # some of the first thousand say the same
    async with running(store.worker()):
        await until(lambda: store.is_settled_in("text-384.v3-"), "it is rolled out")
    await store.check_vectors()
    (change,) = await store.changes()
    basis_id = await store.active()
    assert {**change, "changed_at": 0} == {
        "basis_id": basis_id, "previous_basis_id": UNFITTED_ID, "kind": "fitted", "corpus_size": 1_251,
        "reembedded": 1_250, "changed_at": 0,
    }  # fmt: skip
    row = await store.context.pool.fetchrow("SELECT * FROM insights WHERE embedding_model = 'theirs'")
    assert (row["embedding"], row["next_embedding"], row["next_model"]) == (OWN, None, None)
    await store.ingest(10)
    await store.check_vectors()
    assert await step(store, store.worker()) == 0


async def test_killed_after_any_step_it_goes_on(store: Store):
    """A new worker for each step, insights between them: none ever lacks a vector in the active basis, all end in the new."""
    await store.ingest(1_300)
    seen = []
    while not await store.is_settled() or await store.active() == UNFITTED_ID:
        assert await step(store, store.worker()) > 0
        await store.ingest(7)
        assert await store.lacking() == 0
        seen.append(await store.active())
    assert len(seen) > 8
    assert seen == sorted(seen)  # one switch, and the name of the fitted one sorts behind
    await store.check_vectors()
    assert len(await store.changes()) == 1


async def test_cancelled_at_any_moment_it_goes_on(store: Store):
    """Workers that are cancelled after a few milliseconds, again and again, still end in the new basis, published once."""
    await store.ingest(1_300)
    assert await step(store, store.worker()) == 1  # the fit, which takes longer than these live
    for turn in range(12):
        task = asyncio.create_task(store.worker().run(asyncio.Event()))
        await asyncio.sleep(0.02 + 0.005 * turn)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await store.lacking() == 0
    async with running(store.worker()):
        await until(lambda: store.is_settled_in("text-384.v3-"), "it is rolled out")
    await store.check_vectors()
    assert len(await store.changes()) == 1


async def test_two_workers_share_nothing(store: Store):
    """One of two workers is active: one fit, one event; when it stops the other takes its place."""
    await store.ingest(1_300)
    held = "SELECT count(*) FROM leases WHERE kind = 'embed' AND expires_at > now()"

    async def is_held() -> bool:
        return bool(await store.context.pool.fetchval(held))

    async with running_until_stopped(store.worker()) as stop, running(store.worker()):
        await until(is_held, "one has the lease")
        await until(lambda: store.is_settled_in("text-384.v3-"), "it is rolled out")
        assert await store.context.pool.fetchval("SELECT count(*) FROM bases WHERE kind = 'fitted'") == 1
        assert len(await store.changes()) == 1
        before = await store.active()
        stop.set()
        await store.ingest(4_000)

        async def is_another() -> bool:
            return await store.active() != before

        await until(is_another, "the second fits the next basis")
    assert [change["previous_basis_id"] for change in await store.changes()] == [UNFITTED_ID, before]


async def test_a_worker_that_was_followed_stores_nothing(store: Store):
    """A worker that hung past its lease rolls nothing out when it continues, although it believes in its lease."""
    await store.ingest(1_300)
    worker, pool = store.worker(), store.context.pool
    async with pool.acquire() as tx, holding(tx, pool, LeaseKind.EMBED, "runner", seconds=600) as worker._lease:
        await pool.execute("UPDATE leases SET owner = 'another', epoch = epoch + 1 WHERE kind = 'embed'")
        with pytest.raises(LeaseLostError):
            await worker._step(tx, await read_active(tx))
    assert await pool.fetchval("SELECT count(*) FROM bases WHERE kind = 'fitted'") == 0
    await pool.execute("DELETE FROM leases WHERE kind = 'embed'")


async def test_a_batch_prepared_before_a_switch_is_stored_in_the_new_basis(store: Store):
    """The sink embeds again what it prepared in a basis that is no longer active, or whose successor it did not know."""
    await store.ingest(1_300)
    batches = []
    while await store.active() == UNFITTED_ID:
        batches.append(await store.sink.prepare(store.batch(5)))
        assert await step(store, store.worker()) > 0
    batches.append(await store.sink.prepare(store.batch(5)))
    async with store.context.pool.acquire() as tx:
        for prepared in batches:
            async with tx.transaction():
                await store.sink.apply(tx, [], prepared)
    assert await store.lacking() == 0
    while not await store.is_settled():
        await step(store, store.worker())
    await store.check_vectors()


async def test_a_switch_waits_for_a_batch_under_way(store: Store):
    """While a sink stores, no basis is switched; what it stores has a vector in the basis that is next."""
    await store.ingest(1_300)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 7411 AND NOT granted"

    async def waits() -> bool:
        return await store.active() != UNFITTED_ID or bool(await store.context.pool.fetchval(waiting))

    await step(store, store.worker())
    prepared = await store.sink.prepare(store.batch(5))
    async with running_until_stopped(store.worker()):
        async with store.context.pool.acquire() as tx, tx.transaction():
            await store.sink.apply(tx, [], prepared)
            await until(waits, "the switch waits, or is done")
            assert await store.active() == UNFITTED_ID
        await until(lambda: store.is_settled_in("text-384.v3-"), "it is rolled out")
    await store.check_vectors()


async def test_a_corpus_of_one_text_is_no_corpus(store: Store, monkeypatch: pytest.MonkeyPatch):
    """A thousand times the same text gives no basis, one check, and the next check when there is a tenth more."""
    looks = []
    fit = embed.fit_in_child

    async def counted(texts: list[str]) -> bytes:
        looks.append(len(texts))
        return await fit(texts)

    monkeypatch.setattr(embed, "fit_in_child", counted)
    await store.ingest(1_000, "Lock file maintenance")
    worker = store.worker()
    assert [await step(store, worker) for _ in range(3)] == [0, 0, 0]
    assert looks == [1]
    await store.ingest(99)
    await step(store, worker)
    await store.ingest(1)
    await step(store, worker)
    assert len(looks) == 2
    assert await store.active() == UNFITTED_ID


async def test_a_fit_that_fails_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch):
    """A process that dies or takes too much processor time is an error in the log; the store keeps its basis."""
    with monkeypatch.context() as patched:
        patched.setattr(embed, "_FIT_PROGRAM", "while True: pass")
        patched.setattr(embed, "_FIT_PROCESSOR_SECONDS_MAX", 0.05)
        with pytest.raises(BasisFitError, match="took over"):
            await embed.fit_in_child(list(sample.texts()))
    monkeypatch.setattr(embed, "_FIT_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(BasisFitError, match="exit 3"):
        await embed.fit_in_child(["a"])
    await store.ingest(1_300)
    assert await step(store, store.worker()) == 0
    assert (await store.active(), await store.lacking()) == (UNFITTED_ID, 0)


async def test_a_service_comes_changes_its_model_and_goes(store: Store, service: Service):
    """Built in, a service's model, another of its models, built in: each is rolled out while insights come."""
    await store.ingest(150)
    await store.ingest_foreign()
    told = []
    workers = [store.remote(service.url, "one"), store.remote(service.url, "another"), store.worker()]
    for worker, basis_id in zip(workers, ("one@384", "another@384", UNFITTED_ID), strict=True):
        while await store.active() != basis_id:
            assert await step(store, worker) > 0
            await store.ingest(3)
        assert await store.context.pool.fetchval(
            "SELECT count(*) FROM insights i, active_basis a WHERE i.embedding_model <> 'theirs'"
            " AND i.embedding_model <> a.basis_id AND i.next_model IS DISTINCT FROM a.basis_id"
        ) == 0  # fmt: skip
        async with running(worker):
            await until(lambda b=basis_id: store.is_settled_in(b), f"{basis_id} is rolled out")
        if basis_id != UNFITTED_ID:
            ones = {np.frombuffer(v, "<f4").argmax() for v in await vectors_in(store, basis_id)}
            assert ones == {len(basis_id.split("@")[0]) - 1}
        told.append(basis_id)
    await store.check_vectors()
    assert [change["basis_id"] for change in await store.changes()] == told
    assert [change["kind"] for change in await store.changes()] == ["remote", "remote", "hashed"]
    assert await store.context.pool.fetchval("SELECT embedding FROM insights WHERE embedding_model = 'theirs'") == OWN


async def vectors_in(store: Store, basis_id: str) -> list[bytes]:
    """The stored vectors of a basis."""
    rows = await store.context.pool.fetch("SELECT embedding FROM insights WHERE embedding_model = $1", basis_id)
    return [row["embedding"] for row in rows]


async def test_a_roll_out_that_is_no_longer_wanted_is_called_off(store: Store, service: Service):
    """The service is removed from the settings half-way: its vectors are dropped, and no switch happened."""
    await store.ingest(150)
    remote = store.remote(service.url, "one")
    for _ in range(2):
        await step(store, remote)
    await store.ingest(3)
    assert await store.context.pool.fetchval("SELECT count(*) FROM insights WHERE next_model = 'one@384'") > 0
    async with running(store.worker()):
        await until(lambda: store.is_settled_in(UNFITTED_ID), "all is as before")
    await store.check_vectors()
    assert await store.changes() == []


async def test_what_waits_for_a_service_at_the_switch_waits_on(store: Store, service: Service):
    """An insight that comes between the last fill and the switch has no vector, not one of the old basis; it is made next."""
    await store.ingest(64)
    remote = store.remote(service.url, "one")
    await step(store, remote)
    await step(store, remote)
    store.channel = fresh("a")  # where the sweep has passed
    await store.ingest(3)
    pool = store.context.pool
    async with pool.acquire() as tx, holding(tx, pool, LeaseKind.EMBED, "runner") as remote._lease:
        await remote._step(tx, await read_active(tx))
    assert await store.active() == "one@384"
    assert await store.lacking() == 3
    assert await store.context.pool.fetchval("SELECT count(*) FROM insights WHERE embedding IS NULL") == 3
    async with running(remote):
        await until(lambda: store.is_settled_in("one@384"), "they have theirs")


async def test_a_silent_service_changes_nothing(store: Store, service: Service, monkeypatch: pytest.MonkeyPatch):
    """A service that fails keeps the store in its basis, with new insights in it, and the worker degraded with the reason."""
    monkeypatch.setattr("highwater.connectors.models.embedding_service.MODEL_CALL", replace(MODEL_CALL, attempts_max=1))
    service.mode = "failing"
    await store.ingest(10)
    worker = store.remote(service.url, "one")
    async with running_until_stopped(worker):
        await until(lambda: worker.degraded, "it says so")
        await store.ingest(3)
        assert (await store.active(), await store.lacking()) == (UNFITTED_ID, 0)
        assert "the embedding service fails" in (worker.degraded or "")
        service.mode = "good"
        await until(lambda: store.is_settled_in("one@384"), "it recovers")


async def test_the_local_model_reads_behind_the_sink(store: Store):
    """Insights have a vector of the active basis at once, the model's follow, for stored and new ones; each is the
    one that the model gives for the text. If it is removed from the settings, nothing of it is left.
    """
    await store.ingest_foreign()
    await store.ingest(70)
    async with running(store.local()):

        async def are_read() -> bool:
            return await store.beside() == store.count - 1 and not await store.context.pool.fetchval(
                "SELECT count(*) FROM reembedding"
            )

        await until(are_read, "all are read")
        assert await store.context.pool.fetchval("SELECT next_id FROM active_basis") == MINILM.basis_id
        await store.ingest(5)
        assert (await store.active(), await store.lacking()) == (UNFITTED_ID, 0)
        await until(are_read, "those that came later too")
    rows = await store.context.pool.fetch("SELECT text, next_embedding FROM insights WHERE next_embedding IS NOT NULL")
    made = LocalEmbedder(MODELS).embed_now([row["text"] for row in rows])
    assert b"".join(row["next_embedding"] for row in rows) == made.astype("<f4").tobytes()
    assert await store.changes() == []
    async with running(store.worker()):
        await until(lambda: store.is_settled_in(UNFITTED_ID), "all is as without it")
    await store.check_vectors()


async def test_preliminary_versions_are_replaced_once(store: Store):
    """When nothing is left to read, a rebuild of each user is requested whose current version is preliminary, once."""
    sql = store.context.pool.execute
    for user, version, is_preliminary in (("ada", 1, True), ("bob", 2, True), ("eve", 1, False)):
        await sql("INSERT INTO user_stats (user_id, cluster_version) VALUES ($1, $2)", user, version)
        await sql(
            "INSERT INTO user_clusters (user_id, cluster_version, clusters, noise, dataset_size, omitted, hwm, updated_at,"
            " caused_by, preliminary) VALUES ($1, 1, '[]', 0, 0, 0, '{}', 'epoch', '', $2)", user, is_preliminary,
        )  # fmt: skip
    await store.ingest(70)

    async def demands() -> list[tuple[str, bool, bool]]:
        return [
            (one["user_id"], one["force"], one["if_new"]) for one in await in_outbox(store.context, REBUILD_DEMANDED)
        ]

    async with running(store.local()):

        async def is_asked() -> bool:
            if not await demands():
                return False
            assert await store.beside() == 70
            return True

        await until(is_asked, "it asks after it has read everything")
        await store.ingest(1)

        async def reads_on() -> bool:
            return await store.beside() == 71

        await until(reads_on, "it reads on")
    assert await demands() == [("ada", False, True)]


async def test_the_local_model_waits_for_the_first_fit(store: Store):
    """At 1,000 insights the built-in basis is fitted and switched to; then the model reads everything, and no fit follows."""
    await store.ingest(30)
    worker = store.local()
    for _ in range(3):
        await step(store, worker)
    assert await store.beside() == 30
    await store.ingest(1_300)
    while not (await store.active()).startswith("text-384.v3-"):
        assert await step(store, worker) > 0
        assert await store.lacking() == 0
    while await step(store, worker):
        assert await store.lacking() == 0
    assert await store.beside() == 1_330
    assert [change["kind"] for change in await store.changes()] == ["fitted"]
    await store.ingest(150)
    await store.context.pool.execute("UPDATE bases SET corpus_size = 100 WHERE kind = 'fitted'")  # it has grown tenfold
    worker = store.local()
    while await step(store, worker):
        pass
    assert await store.beside() == 1_480
    assert await store.context.pool.fetchval("SELECT count(*) FROM bases WHERE kind = 'fitted'") == 1


async def test_a_damaged_model_keeps_nobody_waiting(store: Store, tmp_path: Path):
    """A file that is not the one that is locked is refused by name; insights keep their vectors, and none is given up."""
    shutil.copytree(MODELS, tmp_path / "models")
    path = tmp_path / "models" / f"{MINILM.name}.onnx"
    with path.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"damaged")
    await store.ingest(10)
    worker = EmbedWorker(store.context, None, local=LocalEmbedder(tmp_path / "models"), wait_seconds=0.001)
    async with running_until_stopped(worker):
        await until(lambda: worker.degraded, "it says so")
        assert str(path) in (worker.degraded or "")
        assert (await store.active(), await store.lacking()) == (UNFITTED_ID, 0)
    assert await store.context.pool.fetchval("SELECT count(*) FROM insights WHERE excluded_at IS NOT NULL") == 0


async def test_a_window_is_compared_by_the_model_where_it_has_read_all(store: Store):
    """Until then by the active basis, whole: nothing is left out for want of the model's vector."""
    await store.ingest(40)
    worker = store.local()
    span = Span([store.channel], [0], [1_000], to_datetime(0), to_datetime(10_000))

    async def dataset() -> tuple[str, int, int]:
        async with store.context.pool.acquire() as tx:
            found = await read_dataset(tx, span, 1_000, None)
        return found.basis_id, len(found), found.left_out

    assert await dataset() == (UNFITTED_ID, 40, 0)
    for _ in range(3):
        await step(store, worker)
    assert await dataset() == (MINILM.basis_id, 40, 0)
    await store.ingest(1)
    assert await dataset() == (UNFITTED_ID, 41, 0)
    await step(store, worker)
    assert await dataset() == (MINILM.basis_id, 41, 0)


async def test_rows_of_an_older_store_are_in_the_unfitted_basis(store: Store):
    """Rows from before bases existed name the unfitted one, which is active until another is."""
    assert await store.active() == UNFITTED_ID
    kind, content = await store.context.pool.fetchrow(QUERIES["read_basis"], UNFITTED_ID)
    assert (kind, Basis.from_bytes(content).basis_id) == ("hashed", UNFITTED_ID)
