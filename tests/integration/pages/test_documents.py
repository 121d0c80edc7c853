"""Documents: one maker, the same bytes keep their version, and no copy is served after an acknowledged bump."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
import pytest
from redis.asyncio import Redis

from highwater.connectors.pages.copies import IDENTITY, Copies, compress
from highwater.connectors.pages.leases import HELD_SECONDS, LEASE_SECONDS, CopyLease
from highwater.connectors.pages.maker import BuildRequest, DocumentMaker, Outcome
from highwater.connectors.pages.reads import DocumentPendingError, Documents, NoSuchDocumentError
from highwater.connectors.pages.regeneration import RegenerationLocks
from highwater.connectors.pages.versions import bump, next_version
from highwater.connectors.postgres.pool import open_pool, transaction
from highwater.connectors.redis.keys import DOCUMENT, RESOURCE_VERSION, resource_key
from highwater.connectors.redis.link import RedisLink, open_redis
from highwater.connectors.redis.resource_cache import TRUSTED_MS, ResourceCache
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import fresh_id, monotonic_seconds
from highwater.streams.league.resources import LEAGUE_RULES, resource
from highwater.streams.pages.kinds import Resource, kept_seconds
from highwater.streams.pages.refresh import Freshness
from tests.integration.connecting import until
from tests.integration.databases import address_of, own_database

ADS, TABLE = resource("ads"), resource("league_table", "s")
NOW = 1_790_000_000_000


class Built(NamedTuple):
    """The result of the builder of these tests."""

    payload: bytes
    caused_by: str


class Facts:
    """The source of documents: a text in PostgreSQL, and the number of reads."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self.pool = pool
        self.loads = 0
        self.gate: asyncio.Event | None = None

    async def write(self, text: str | None) -> None:
        """Change them; None: there is nothing."""
        await self.pool.execute("DELETE FROM facts")
        if text is not None:
            await self.pool.execute("INSERT INTO facts VALUES ($1)", text)

    async def build(self, tx: Any, about: str, now_ms: int) -> Built | None:
        """The builder of every kind but the window."""
        self.loads += 1
        text = await tx.fetchval("SELECT text FROM facts")
        if self.gate is not None:
            await self.gate.wait()
        return None if text is None else Built(text.encode(), "t/0/1")

    async def window(self, tx: Any, about: str, now_ms: int) -> Built | None:
        """No match anywhere."""
        return Built(b'{"windows":{}}', "")


class Side:
    """One process's documents."""

    def __init__(self, documents: Documents, maker: DocumentMaker, copies: Copies, lease: CopyLease, pool: Any) -> None:
        self.documents, self.maker, self.copies, self.lease, self.pool = documents, maker, copies, lease, pool

    async def bump(self, *, is_forced: bool = False, is_dropped: bool = False, page: Resource = ADS) -> Outcome:
        """Rebuild or remove the advertisements (or another page), and publish it, as the materializer does."""
        wanted = BuildRequest(page, "test", is_forced=is_forced, is_dropped=is_dropped)
        async with transaction(self.pool) as tx:
            (made,) = await self.maker.make(tx, self.pool, [wanted])
        if made.outcome.is_to_be_told:
            await self.maker.tell(self.pool, [page.key])
        return made.outcome

    async def text(self) -> str:
        """The advertisements as a reader gets them."""
        while True:
            served = await self.documents.read(ADS)
            body = await self.documents.payload(ADS, served.head, IDENTITY)
            if body is not None:
                return body.decode()


class World:
    """A database, the facts, a clock, and sides that share them."""

    def __init__(self, context: Any, url: str, link: RedisLink) -> None:
        self.context, self.url, self.link = context, url, link
        self.facts = Facts(context.pool)
        self.now_ms = NOW

    @asynccontextmanager
    async def side(self, *, link: RedisLink | None = None) -> AsyncIterator[Side]:
        """Another process, as far as documents know."""
        link = link or self.link
        cache, copies = ResourceCache(link, DOCUMENT), Copies()
        built = dict.fromkeys(("ads", "league_table", "match_live"), self.facts.build) | {
            "match_window": self.facts.window
        }
        maker = DocumentMaker(LEAGUE_RULES, built, lambda: self.context.codec, cache, lambda: self.now_ms)
        lease = CopyLease(self.url, copies, fresh_id())
        documents = Documents(
            maker, pool=lambda: self.context.pool, cache=cache, copies=copies, lease=lease,
            locks=RegenerationLocks(link), clock=lambda: self.now_ms,
        )  # fmt: skip
        documents.start()
        try:
            yield Side(documents, maker, copies, lease, self.context.pool)
        finally:
            await documents.close()


@pytest.fixture
async def world(stack, link: RedisLink) -> AsyncIterator[World]:
    """An empty database and an empty Redis number."""
    async with own_database(stack) as context:
        await context.pool.execute("CREATE TABLE facts (text text NOT NULL)")
        world = World(context, await address_of(stack, context), link)
        await world.facts.write("one")
        yield world


async def leased(side: Side) -> None:
    """Read until a copy is served from memory alone."""

    async def is_quick() -> bool:
        await side.text()
        return side.documents.quick(ADS) is not None

    await until(is_quick, "the copy is served under the lease")


@pytest.mark.requirement("R4.7", "R4.31")
async def test_the_same_bytes_keep_their_version(world: World) -> None:
    """Only other bytes and an explicit invalidation take a new version; each is published by one event."""
    async with world.side() as side:
        assert await side.bump() is Outcome.FIRST
        assert await side.bump() is Outcome.SAME
        await world.facts.write("two")
        assert await side.bump() is Outcome.BUMPED
        assert await side.bump(is_forced=True) is Outcome.BUMPED
        await world.facts.write(None)
        assert await side.bump() is Outcome.GONE
        assert await side.bump() is Outcome.NONE
        await world.facts.write("three")
        assert await side.bump() is Outcome.FIRST
        head = (await side.documents.read(ADS)).head
    told = await world.context.pool.fetch("SELECT topic FROM outbox WHERE key = $1", ADS.key.encode())
    assert (head.version, head.caused_by, len(told)) == (4, "t/0/1", 4)


async def test_what_is_taken_away_and_made_again_keeps_its_version(world: World) -> None:
    """The same bytes have the former version and ETag, in another process too, and nothing is published;
    others have a new one.
    """
    async with world.side() as side, world.side() as other:
        await leased(side)
        before = (await side.documents.read(ADS)).head
        for _ in range(2):
            assert await side.bump(is_dropped=True) is Outcome.GONE
            after = (await other.documents.read(ADS)).head
            assert (after.version, after.etag) == (before.version, before.etag) == (1, before.etag)
            assert (await side.text(), await other.text()) == ("one", "one")
        await side.bump(is_dropped=True)
        assert await side.bump(is_forced=True) is Outcome.FIRST
        await side.bump(is_dropped=True)
        await world.facts.write("two")
        last = (await other.documents.read(ADS)).head
        assert (last.version, await side.text(), await other.text()) == (3, "two", "two")
    assert await world.context.pool.fetchval("SELECT count(*) FROM outbox WHERE key = $1", ADS.key.encode()) == 3


async def test_a_page_whose_absence_is_shown_comes_back_as_another(world: World) -> None:
    """The live part of a match has another version after its absence: the match was served without it meanwhile."""
    live = resource("match_live", "m")
    async with world.side() as side:
        for version in (1, 2):
            assert await side.bump(page=live) is Outcome.FIRST
            assert (await side.documents.read(live)).head.version == version
            assert await side.bump(page=live, is_dropped=True) is Outcome.GONE


async def test_the_first_versions_of_two_installations_have_different_tags(world: World, stack) -> None:
    """A tag is bound to bytes: the same version of other bytes has another, in another database or after a restored backup."""
    async with world.side() as side, own_database(stack) as other:
        await side.bump()
        here = (await side.documents.read(ADS)).head
        await world.context.pool.execute("DELETE FROM documents")
        await world.context.pool.execute("DELETE FROM resource_versions")  # as a backup from before it was made
        await world.facts.write("two")
        await side.bump()
        restored = (await side.documents.read(ADS, is_positioned=True)).head
        async with transaction(other.pool) as tx:
            there = await bump(tx, other.codec, ADS.key, caused_by="t/0/1", now_ms=NOW, source="/tests", payload=b"two")
            clusters = [
                await _first(tx, cause, at) for cause, at in (("t/0/1", NOW), ("t/0/2", NOW), ("t/0/1", NOW + 1))
            ]
    assert here.version == restored.version == there.version == 1
    assert here.etag != restored.etag
    assert restored.etag == there.etag  # the same version of the same bytes
    assert len({*clusters}) == 3  # no bytes yet: bound to the event behind it and the moment


async def _first(tx: Any, caused_by: str, now_ms: int) -> str:
    """The tag of the first version of clusters that this event made, as of an installation of its own."""
    await tx.execute("DELETE FROM resource_versions WHERE key = 'clusters:ada'")
    return (await next_version(tx, "clusters:ada", caused_by, now_ms))["etag"]


@pytest.mark.requirement("R4.8")
async def test_no_copy_is_served_after_an_acknowledged_bump(world: World) -> None:
    """After each of 40 bumps by one process, another that serves from memory returns the new text at once."""
    async with world.side() as writer, world.side() as reader:
        await writer.bump()
        await leased(reader)
        served_from_memory = 0
        for number in range(40):
            await world.facts.write(f"text {number}")
            served_from_memory += reader.documents.quick(ADS) is not None
            await writer.bump()
            assert await reader.text() == f"text {number}"
            await leased(reader)
        assert served_from_memory == 40


@pytest.mark.requirement("R4.31")
async def test_a_bump_that_redis_missed_is_acknowledged_when_no_older_head_is_trusted(world: World) -> None:
    """Redis answers one call too late, and counts as up: the bump returns only once no process trusts the old head."""
    async with world.side() as writer, world.side() as reader:
        await writer.bump()
        await reader.text()
        await reader.lease.close()  # it asks Redis from now on
        await world.facts.write("two")
        async with transaction(writer.pool) as tx:
            (made,) = await writer.maker.make(tx, writer.pool, [BuildRequest(ADS, "test")])
        await world.link.client.client_pause(400)
        started = monotonic_seconds()
        await writer.maker.tell(writer.pool, [ADS.key])
        assert made.outcome is Outcome.BUMPED
        assert monotonic_seconds() - started >= TRUSTED_MS / 1000


async def test_a_redis_that_lost_its_last_writes_costs_one_attempt(world: World) -> None:
    """A replica took over that knows the version before, and calls it fresh: the second look finds the present one."""
    await world.facts.write("first")
    cache = ResourceCache(world.link, DOCUMENT)
    async with world.side() as writer:
        assert await writer.text() == "first"
        (former,) = await cache.heads([ADS.key])
        assert former is not None
        await world.facts.write("second")
        assert await writer.bump() is Outcome.BUMPED
    await cache.forget(ADS.key)
    assert await cache.put(ADS.key, former)
    async with world.side() as reader:
        served = await reader.documents.read(ADS)
        assert served.head.version == former.version
        assert await reader.documents.payload(ADS, served.head, IDENTITY) is None
        served = await reader.documents.read(ADS)
        assert await reader.documents.payload(ADS, served.head, IDENTITY) == b"second"


async def test_a_writer_waits_for_a_process_that_is_stopped_only_as_long_as_its_lease(world: World) -> None:
    """A holder that no longer renews is waited for until its lease has ended, and by then serves nothing from memory."""
    async with world.side() as writer, world.side() as reader:
        await writer.bump()
        await leased(reader)
        # Stopped between two renewals: its row in PostgreSQL stays, as that of a process under SIGSTOP does.
        await _stop_renewing(reader)
        await world.facts.write("two")
        started = monotonic_seconds()
        await writer.bump()
        waited = monotonic_seconds() - started
        assert reader.documents.quick(ADS) is None
        assert waited <= LEASE_SECONDS + 0.5
        assert await reader.text() == "two"


async def _stop_renewing(side: Side) -> None:
    """Renewals stop and nothing else: the row stays, the time runs."""

    async def never(_connection: Any) -> None:
        await asyncio.Event().wait()

    side.lease._renew = never  # type: ignore[method-assign]
    side.lease._wake.set()
    await asyncio.sleep(0)


async def test_a_copy_put_after_a_bump_is_asked_about_first(world: World) -> None:
    """A reader that was slow to store what it read before a bump does not serve it under a lease renewed after it."""
    async with world.side() as writer, world.side() as reader:
        await writer.bump()
        await leased(reader)
        old = (await reader.documents.read(ADS)).head
        await world.facts.write("two")
        await writer.bump()
        assert reader.lease.is_held()
        reader.copies.drop(ADS.key)
        reader.copies.put(ADS.key, old, b"one")
        assert reader.documents.quick(ADS) is None
        assert await reader.text() == "two"


async def test_a_lease_ends_by_itself(world: World) -> None:
    """Nothing is served from memory without renewals."""
    async with world.side() as reader:
        await reader.bump()
        await leased(reader)
        await _stop_renewing(reader)
        started = monotonic_seconds()

        async def ended() -> bool:
            return reader.documents.quick(ADS) is None

        await until(ended, "the lease ends")
        assert monotonic_seconds() - started <= HELD_SECONDS + 0.2
        # One question to Redis is then enough, for the page and the windows together, until it is trusted no longer.
        await reader.text()
        before = (await world.link.client.info("commandstats"))["cmdstat_hmget"]["calls"]
        assert await reader.documents.near(ADS) is not None
        after = (await world.link.client.info("commandstats"))["cmdstat_hmget"]["calls"]
        assert after - before == 2
        world.now_ms += TRUSTED_MS + 1
        assert await reader.documents.near(ADS) is None


async def test_a_bump_that_redis_was_not_told_of_is_acknowledged_later(world: World) -> None:
    """A writer cut off from Redis waits until no process trusts the contents of Redis."""
    away = await open_redis(None)
    async with world.side(link=away) as writer, world.side() as reader:
        await reader.bump()
        await leased(reader)
        await world.facts.write("two")
        started = monotonic_seconds()
        await writer.bump()
        assert monotonic_seconds() - started >= TRUSTED_MS / 1000
        world.now_ms += int((monotonic_seconds() - started) * 1000)  # the product's clock advanced meanwhile
        assert await reader.text() == "two"


@pytest.mark.requirement("R4.27", "R4.28")
async def test_two_hundred_readers_of_an_expired_document_load_it_once(world: World) -> None:
    """Over two processes: all of them are answered at once with the former copy, and it is rebuilt once."""
    async with world.side() as a, world.side() as b:
        await a.bump()
        await asyncio.gather(a.text(), b.text())
        world.now_ms += (ADS.kind.ttl_outside_seconds + 1) * 1000
        await a.documents.windows()  # they end sooner, and are not counted
        loads = world.facts.loads
        world.facts.gate = asyncio.Event()
        served = await asyncio.gather(*(side.documents.read(ADS) for side in (a, b) for _ in range(100)))
        world.facts.gate.set()
        assert {one.freshness for one in served} == {Freshness.STALE}

        async def is_fresh() -> bool:
            return (await b.documents.read(ADS)).freshness is Freshness.FRESH

        await until(is_fresh, "it was made anew")
        assert world.facts.loads - loads == 1


async def test_redis_has_the_first_version_at_once_and_each_for_as_long_as_its_kind_says(world: World) -> None:
    """Another process finds the payload there without asking PostgreSQL; no copy stays after it can be served."""
    async with world.side() as side:
        for page in (ADS, TABLE):
            head = (await side.documents.read(page)).head
            assert await world.link.client.get(page.key) == b"%d\n" % head.version + compress(b"one")
            for key in (page.key, resource_key(RESOURCE_VERSION, page.key, is_cluster=False)):
                assert 0 <= kept_seconds(page.kind) - await world.link.client.ttl(key) <= 5
    # R4.21, R4.13: ten minutes and four times that, as in a window; a week and an hour, as outside.
    assert (kept_seconds(ADS.kind), kept_seconds(TABLE.kind)) == (5 * 600, 7 * 86_400 + 3_600)


@pytest.mark.requirement("R4.29")
async def test_losers_of_a_cold_document_are_told_to_come_again(world: World) -> None:
    """One process makes it and answers; the other says that it is pending, and does not make it a second time."""
    async with world.side() as a, world.side() as b:
        await asyncio.gather(a.documents.windows(), b.documents.windows())
        world.facts.gate = asyncio.Event()
        loads = world.facts.loads
        winner = asyncio.create_task(a.documents.read(ADS))

        async def is_loading() -> bool:
            return world.facts.loads > loads

        await until(is_loading, "it is being made")
        with pytest.raises(DocumentPendingError):
            await b.documents.read(ADS)
        world.facts.gate.set()
        assert (await winner).freshness is Freshness.FRESH
        assert await b.text() == "one"
        assert world.facts.loads - loads == 1


@pytest.mark.requirement("R4.29")
async def test_a_winner_that_takes_long_answers_pending_and_goes_on(world: World) -> None:
    """After two seconds its reader gets a retry time; the document exists once it is built."""
    async with world.side() as side:
        await side.documents.windows()
        world.facts.gate = asyncio.Event()
        with pytest.raises(DocumentPendingError):
            await side.documents.read(ADS)
        world.facts.gate.set()

        async def is_there() -> bool:
            try:
                return bool(await side.text())
            except DocumentPendingError:
                return False

        await until(is_there, "it was made all the same")


async def test_what_is_not_there_is_an_error(world: World) -> None:
    """No facts: no document, no version, and an error that names it."""
    await world.facts.write(None)
    async with world.side() as side:
        with pytest.raises(NoSuchDocumentError, match=r"^there is no season 's'$"):
            await side.documents.read(TABLE)
    assert await world.context.pool.fetch("SELECT 1 FROM resource_versions WHERE key = $1", TABLE.key) == []


@pytest.mark.requirement("R4.28")
async def test_a_maker_that_waited_takes_what_the_other_made(world: World) -> None:
    """Without Redis each process tries; PostgreSQL lets one make it and gives it to the others."""
    away = await open_redis(None)
    async with world.side(link=away) as a, world.side(link=away) as b:
        await asyncio.gather(a.documents.windows(), b.documents.windows())
        loads = world.facts.loads
        await asyncio.gather(*(side.documents.read(ADS) for side in (a, b) for _ in range(20)))
        assert world.facts.loads - loads == 1


async def test_a_read_with_positions_sees_what_was_committed_before_it(world: World) -> None:
    """It is built from the facts for any copies, and no reader gets an older text after it."""
    async with world.side() as a, world.side() as b:
        await a.bump()
        await leased(b)
        for number in range(5):
            await world.facts.write(f"text {number}")
            served = await a.documents.read(ADS, is_positioned=True)
            assert await a.documents.payload(ADS, served.head, IDENTITY) == f"text {number}".encode()
            assert await b.text() == f"text {number}"


@pytest.mark.requirement("R4.28")
async def test_a_lock_that_ran_out_is_not_released_by_its_former_owner(link: RedisLink, redis_url: str) -> None:
    """Only the owner's token takes a lock away."""
    client = Redis.from_url(redis_url)
    locks = RegenerationLocks(link, seconds=1)
    async with locks.hold("k") as is_mine:
        assert is_mine
        await client.set("__lock:k", "another")
    assert await client.get("__lock:k") == b"another"
    await client.delete("__lock:k")
    await client.aclose()


async def test_without_postgresql_nothing_cold_is_served(world: World) -> None:
    """A document without a read before is an error with a retry time; see tests/chaos for documents that were read."""
    async with world.side() as side:
        pool = await open_pool(world.url, size_max=1)
        await pool.close()
        side.documents._pool = lambda: pool  # type: ignore[method-assign]
        with pytest.raises(UnavailableError):
            await side.documents.read(ADS)
