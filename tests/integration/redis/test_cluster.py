"""Redis Cluster (R2.1): all that is done with Redis, on three primaries with a replica each, before and after one is killed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.crc import key_slot

from highwater.connectors.feeds.mirror import Mirror
from highwater.connectors.feeds.userlock import UserLock
from highwater.connectors.identity.organizations import Organization, Organizations
from highwater.connectors.identity.rate_limits import CallCounts, RateSubject
from highwater.connectors.identity.sessions import NewSession, SessionStore
from highwater.connectors.jobs.progress import Progress
from highwater.connectors.jobs.semantic_cache import Lookup, SemanticCache
from highwater.connectors.jobs.streams import JobStreams
from highwater.connectors.jobs.views import ViewCounts
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.models.embedding_calls import CountedEmbedder
from highwater.connectors.models.embeddings import BuiltInEmbedder
from highwater.connectors.pages.regeneration import RegenerationLocks
from highwater.connectors.redis.client import CONNECTIONS_MAX, ask_once
from highwater.connectors.redis.keys import DIRTY_CHANNELS, DOCUMENT, REVOKED_AT, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink, open_redis
from highwater.connectors.redis.resource_cache import Head, ResourceCache
from highwater.deploy.local.probes import probe_redis
from highwater.deploy.local.redis import chosen_server
from highwater.schemas.errors import UnavailableError
from highwater.streams.identity.plans import PLANS
from highwater.streams.models.costs import parse_prices
from tests.conftest import Stack
from tests.integration.api_server import running_api
from tests.integration.connecting import event, fresh, in_transaction, until
from tests.integration.databases import make_database, own_database
from tests.integration.identity.making import open_session
from tests.integration.jobs.watching import checkpoint, materialize, new_id, steps, used
from tests.integration.redis.six_nodes import PASSWORD, SixNodes

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SixNodes]:
    """Six nodes."""
    with SixNodes(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
async def link(cluster: SixNodes) -> AsyncIterator[RedisLink]:
    """A link to the cluster."""
    made = await open_redis(cluster.url)
    assert made.is_up, made.reason
    yield made
    await made.close()


@pytest.fixture(scope="module")
async def context(stack: Stack) -> AsyncIterator[ProcessContext]:
    """An empty database."""
    async with own_database(stack) as made:
        yield made


async def versions(link: RedisLink) -> None:
    """Scripts over two keys, and one pipeline over all nodes; a late version changes nothing, for any names."""
    for payloads in (None, DOCUMENT):
        cache = ResourceCache(link) if payloads is None else ResourceCache(link, payloads)
        names = [f"league:table:{fresh('s')}" for _ in range(20)] + [fresh("odd{}x}"), fresh("a{b}c"), fresh("50%")]
        for name in names:
            assert await cache.put(name, Head(3, "e-3", "t/0/1", NOW_MS), b"three")
            assert not await cache.put(name, Head(2, "e-2", "t/0/1", NOW_MS), b"two")
        heads = await cache.heads(names)
        assert [head.version if head else None for head in heads] == [3] * len(names)
        assert [await cache.payload(name, 3) for name in names] == [b"three"] * len(names)
        await cache.announce(names[0], 4, seconds=60)
        await cache.forget(names[1])
        assert await cache.heads(names[:2]) == [None, None]


async def counting(link: RedisLink) -> None:
    """Counters of many keys in one exchange, a script of one key, and the copy of a plan under its leave."""
    limits, user = CallCounts(link, 15), fresh("u")
    asked = [RateSubject(f"k{n % 3}-{user}", f"u{n % 7}-{user}", "o", user) for n in range(210)]
    found = await asyncio.gather(*(limits.count(subject, NOW_MS) for subject in asked))
    assert sorted(one.of_key or 0 for one in found) == sorted(list(range(1, 71)) * 3)
    assert sorted(one.of_user or 0 for one in found) == sorted(list(range(1, 31)) * 7)
    live = CallCounts(link, 2)
    assert [await live.retry_after_ms(user, NOW_MS) > 0 for _ in range(3)] == [False, False, True]

    async def stored(_: str) -> Organization:
        return Organization("acme", PLANS["team"])

    organizations, name = Organizations(link, lambda: None, PLANS), fresh("org")
    organizations._of_postgres = stored  # type: ignore[method-assign]
    assert (await organizations.read_limits(name)).plan == PLANS["team"]
    assert (await CallCounts(link, 15).count(RateSubject("k", organization_id=name), NOW_MS)).limit == PLANS[
        "team"
    ].requests_per_minute
    await organizations.forget(name)


async def locks(link: RedisLink, context: ProcessContext) -> None:
    """Tokens are set, read and released."""
    user, document = fresh("u"), fresh("league:table")
    one, other = (UserLock(link, context.pool, user, token=token) for token in ("t/0/1", "t/0/2"))
    assert [await one.acquire(60), await other.acquire(60)] == [True, False]
    await one.release()
    assert await other.acquire(60)
    await other.release()
    held = RegenerationLocks(link)
    async with held.hold(document) as is_mine, held.hold(document) as is_mine_too:
        assert (is_mine, is_mine_too) == (True, False)


async def jobs(link: RedisLink, context: ProcessContext) -> None:
    """Scripts in pipelines over the nodes, streams, usage, views; who listens is woken after what it is woken for."""
    progress, streams = Progress(context.pool, link), JobStreams(link)
    wakes = streams.wakes()
    assert await anext(wakes) is None
    jobs = [new_id() for _ in range(8)]
    await materialize(progress, [one for job in jobs for one in (*steps(job, 1, 9), checkpoint(job))])
    woken = {await anext(wakes) for _ in range(9 * len(jobs))}  # a message for each step
    await wakes.aclose()
    assert woken == set(jobs)
    read = await streams.read([(job, 2) for job in jobs])
    assert [[entry.seq for entry in found.entries] for found in read] == [list(range(3, 10))] * len(jobs)
    assert await link.client.hget(f"gen_checkpoint:{jobs[0]}", "slides_completed") == b"7"
    org = fresh("org")
    await materialize(progress, [used(org, seq) for seq in (1, 2, 3)])
    await streams.beat({"ada": ["a:1"], "bob": ["a:2"]}, NOW_MS)
    await streams.gone("ada", "a:1")
    views = ViewCounts(link)
    for deck in jobs:
        assert await views.add(deck, 0)
        assert await views.add(deck, 0)
    await views.cancel(jobs[0])
    assert [await views.shown(deck, 0) for deck in jobs] == [1, *[2] * (len(jobs) - 1)]
    await views.reach(dict.fromkeys(jobs, 5))
    assert [await views.shown(deck, 0) for deck in jobs] == [5] * len(jobs)
    counted = CountedEmbedder(context.pool, BuiltInEmbedder(), parse_prices(""), lambda: NOW_MS)
    cache, wanted = SemanticCache(context.pool, link, counted), Lookup(org, "", f"what is {org}?")
    await cache.store(wanted, {"deck": org}, tokens_saved=1, provider="p", now_ms=NOW_MS)
    assert await cache.lookup(wanted, NOW_MS) == {"deck": org}


async def sessions(link: RedisLink, context: ProcessContext) -> None:
    """Made, read, listed and revoked: keys of one user are on several nodes."""
    store, user = SessionStore(link, lambda: context.pool), fresh("u")
    tokens = []
    for _ in range(3):
        async with context.pool.acquire() as tx, tx.transaction():
            tokens.append((await store.create(tx, NewSession(user, "", "", "free", ""), "viewer", NOW_MS))[0])
    assert [(await store.read(token, NOW_MS)).user_id for token in tokens] == [user] * 3  # type: ignore[union-attr]
    await store.delete(await store.peek(tokens[0]))  # type: ignore[arg-type]
    assert await store.revoke_all(user, NOW_MS + 1) == 2
    assert [await store.read(token, NOW_MS) for token in tokens] == [None] * 3


async def mirroring(link: RedisLink, context: ProcessContext) -> None:
    """Keys on all nodes, the rest of them found on all, a sweep."""
    mirror = Mirror(context.pool, link, ResourceCache(link), lambda: NOW_MS, tick_seconds=1)
    moved = event("feeds.channel-advanced", {"channel_id": "c", "head": 1, "arrived_at": 1}, arrived_ms=NOW_MS)
    await link.client.hset("us:old", "plan", "pro")
    await link.client.hset("hwm:old:c", "last_seq", 1)
    # The mirror was further than what Redis says of it.
    await context.pool.execute(
        'INSERT INTO positions ("group", topic, partition, topic_id, next) '
        "VALUES ('mirror', 'feeds.channel-advanced', 0, 'x', 9) "
        'ON CONFLICT ("group", topic, partition) DO UPDATE SET next = positions.next + 9'
    )
    await in_transaction(context, mirror, [moved])
    assert [await link.client.exists("us:old"), await link.client.exists("hwm:old:c")] == [0, 0]
    await link.client.zadd(DIRTY_CHANNELS, {"c": 1})
    tick = event("streams.tick", {"number": 1, "now": NOW_MS}, arrived_ms=NOW_MS)
    await in_transaction(context, mirror, [tick])


async def everything(link: RedisLink, context: ProcessContext) -> None:
    """All that is done with Redis."""
    await versions(link)
    await counting(link)
    await locks(link, context)
    await jobs(link, context)
    await sessions(link, context)
    await mirroring(link, context)
    counters = await link.counters()
    assert counters["connected_clients"] > 0
    assert counters["used_memory"] > 1_000_000


@pytest.mark.requirement("R2.1")
async def test_everything_works_on_a_cluster(cluster: SixNodes, link: RedisLink, context: ProcessContext):
    """Scripts, pipelines, MULTI, pub/sub, scans and counters, on keys that lie on all three primaries."""
    await everything(link, context)
    held = {number: cluster.node(number).dbsize() for number in range(3)}
    assert all(held.values()), held


async def test_more_callers_than_connections_wait_for_their_turn(link: RedisLink):
    """A node refuses callers without a connection; here none is refused, and Redis does not count as unavailable."""
    count = 8 * CONNECTIONS_MAX
    found = await asyncio.gather(*(link.run(link.require().incr("turns")) for _ in range(count)))
    assert sorted(found) == [*range(1, count + 1)]
    assert link.is_up


async def test_an_address_of_the_wrong_kind_is_named(cluster: SixNodes, stack: Stack):
    """A node without the scheme of a cluster, and a server with it: not up, and the reason says what to write."""
    node = f"redis://:{PASSWORD}@127.0.0.1:{cluster.ports[0]}/0"
    alone = await open_redis(node, "REDIS_CACHE_URL")
    assert (alone.is_up, "REDIS_CACHE_URL" in alone.reason, "redis+cluster://" in alone.reason) == (False, True, True)
    await alone.close()
    other = await open_redis(stack.redis.replace("redis://", "redis+cluster://"))
    assert (other.is_up, "Cluster mode is not enabled" in other.reason) == (False, True)
    await other.close()
    assert (await ask_once(cluster.url, 5)).executable == str(chosen_server().program)
    with pytest.raises(UnavailableError, match=r"redis\+cluster://"):
        await ask_once(node, 5)
    assert await asyncio.to_thread(probe_redis, cluster.url, 5) is None


async def test_a_killed_primary_costs_seconds_and_nothing_else(
    cluster: SixNodes, link: RedisLink, context: ProcessContext, stack: Stack
):
    """While a part has no primary Redis counts as unavailable and readers do without; its replica takes over, and all continues.

    Writes of the last second that the replica may lack are sent again: revoked sessions stay revoked.
    """
    user = fresh("u")
    revoked = key(REVOKED_AT, user_id=user)
    async with context.pool.acquire() as tx, tx.transaction():
        sessions = SessionStore(link, lambda: context.pool)
        token, _ = await sessions.create(tx, NewSession(user, "", "", "free", ""), "viewer", NOW_MS)
        await tx.execute(
            "INSERT INTO session_revocations (user_id, revoked_at) VALUES ($1, to_timestamp($2::float8 / 1000))",
            user, NOW_MS + 1,
        )  # fmt: skip
    await sessions.mark_revoked(user, NOW_MS + 1)
    generation = link.generation
    database = await make_database(stack.database, fresh("cluster").replace("-", "_"))
    settings = stack.settings(DATABASE_URL=database, REDIS_URL=cluster.url, HIGHWATER_API_KEYS="admin:root")
    with running_api(settings) as api:
        async with api.client("root") as client:
            session = (await open_session(client, "ada"))["session_id"]
            assert (await api.get("/api/users/ada/feed", session)).status_code == 200
            victim = cluster.primary_of(revoked)
            cluster.kill(victim)
            answers = []

            async def is_back() -> bool:
                answers.append((await client.get("/api/users/ada/feed")).status_code)
                try:
                    await link.run(link.require().get(revoked))
                except RedisAwayError:
                    return False
                return True

            await until(is_back, "the replica has taken over", 60)
            assert set(answers) == {200}  # with a key of the settings that is noticed nowhere
            assert link.generation > generation
            # As if the primary had died before its replica had it.
            await link.run(link.require().delete(revoked))
            assert await sessions.read(token, NOW_MS) is None
            await everything(link, context)

            async def serves() -> bool:
                return (await api.get("/api/users/ada/feed", session)).status_code == 200

            await until(serves, "sessions are served again", 30)
    cluster.start(victim)
    await until(lambda: cluster.is_whole(victim), "the node is back, as a replica", 60)


def test_keys_of_one_user_are_on_several_nodes() -> None:
    """Else these tests would show nothing."""
    users = [str(uuid.uuid4()) for _ in range(10)]
    slots = {key_slot(f"{kind}:{user}".encode()) * 3 // 16_384 for user in users for kind in ("us", "revoked_at")}
    assert slots == {0, 1, 2}
