"""Big payloads in an object storage with a pointer in Redis, over a real S3 API (moto's server in a process of its own)."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import obstore
import pytest
from obstore.store import S3Store

from highwater.connectors.pages.copies import IDENTITY, Copies
from highwater.connectors.pages.leases import CopyLease
from highwater.connectors.pages.maker import BuildRequest, DocumentMaker
from highwater.connectors.pages.reads import Documents
from highwater.connectors.pages.regeneration import RegenerationLocks
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.redis.keys import DOCUMENT
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.connectors.redis.objects import POINTER, name_of, open_objects
from highwater.connectors.redis.resource_cache import Head, ResourceCache
from highwater.schemas.errors import ConfigurationError
from highwater.streams.clock import fresh_id
from highwater.streams.league.resources import LEAGUE_RULES, resource
from tests.conftest import Stack
from tests.integration.connecting import until
from tests.integration.databases import address_of, own_database

NOW = 1_790_000_000_000
BUCKET = "pages"
BIG, SHORT = bytes(range(256)) * 40, b"short"
# Beyond the limit also when it is compressed.
PAGE = "".join(sha256(b"%d" % number).hexdigest() for number in range(100)).encode()
TABLE, OWN = resource("league_table", "s"), resource("predictions_user", "ada")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a storage with a bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log: Path = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out
        )
    url = f"http://127.0.0.1:{port}"
    transport = httpx2.HTTPTransport(retries=20)  # each waits twice as long as the one before, up to a minute
    try:
        with httpx2.Client(transport=transport, trust_env=False, timeout=60.0) as http:
            assert http.put(f"{url}/{BUCKET}").status_code == 200, log.read_text()
        yield url
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(20)
        child.kill()
        child.wait()


def settings_of(stack: Stack, url: str, store: str = f"s3://{BUCKET}/highwater") -> Any:
    """Those of an installation with that storage; payloads of more than 1,000 bytes go there."""
    return stack.settings(
        HIGHWATER_OBJECT_STORE=store,
        HIGHWATER_REDIS_PAYLOAD_BYTES_MAX="1000",
        AWS_ENDPOINT_URL=url,
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="secret",
    )


async def stored(s3: str, key: str) -> bytes:
    """The stored bytes of a resource, by a separate client.

    Raises:
        FileNotFoundError: nothing.
    """
    store = S3Store(
        BUCKET, endpoint=s3, access_key_id="other", secret_access_key="other", region="us-east-1",
        client_options={"allow_http": True},
    )  # fmt: skip
    found = await obstore.get_async(store, f"highwater/{name_of(key)}")
    return bytes(await found.bytes_async())


def head(version: int) -> Head:
    """One of the table."""
    return Head(version, f"t-{version}", "", checked_ms=NOW, built_ms=NOW)


@pytest.fixture
def cache(stack: Stack, s3: str, link: RedisLink) -> ResourceCache:
    """Over an empty Redis number."""
    return ResourceCache(link, DOCUMENT, open_objects(settings_of(stack, s3)))


@pytest.mark.requirement("R4.35")
async def test_a_big_payload_is_in_the_storage_and_a_pointer_in_redis(
    cache: ResourceCache, s3: str, link: RedisLink
) -> None:
    """A short one stays in Redis; each version takes the place of the one before, and is never taken for another."""
    assert await cache.put(TABLE.key, head(1), BIG, is_impersonal=True)
    assert await link.client.get(TABLE.key) == b"1\n" + POINTER + name_of(TABLE.key).encode()
    assert await cache.payload(TABLE.key, 1) == BIG
    assert await stored(s3, TABLE.key) == b"1\n" + BIG
    assert await cache.put(TABLE.key, head(2), BIG[::-1], is_impersonal=True)
    assert (await cache.payload(TABLE.key, 1), await cache.payload(TABLE.key, 2)) == (None, BIG[::-1])
    assert await cache.put(TABLE.key, head(3), SHORT, is_impersonal=True)
    assert await link.client.get(TABLE.key) == b"3\n" + SHORT
    # A maker that was late overwrote the object; Redis kept the newer pointer.
    assert await cache.put(TABLE.key, head(5), BIG, is_impersonal=True)
    assert not await cache.put(TABLE.key, head(4), BIG[::-1], is_impersonal=True)
    assert await cache.payload(TABLE.key, 5) is None


async def test_what_holds_something_of_a_user_never_goes_there(cache: ResourceCache, s3: str, link: RedisLink) -> None:
    """Only documents that are declared free of user data do: an erasure has nothing to remove there."""
    assert await cache.put(OWN.key, head(1), BIG)
    assert await link.client.get(OWN.key) == b"1\n" + BIG
    with pytest.raises(FileNotFoundError):
        await stored(s3, OWN.key)
    of_users = {"match_live", "match_comments", "predictions_active", "predictions_user", "leaderboard", "achievements"}
    assert not of_users & {kind.name for kind in LEAGUE_RULES.catalogue.kinds.values() if kind.is_impersonal}


@pytest.mark.parametrize("store", [f"s3://{BUCKET}/highwater", "s3://no-such-bucket"])
async def test_a_storage_that_does_not_take_it_costs_nothing_but_a_question(
    stack: Stack, s3: str, link: RedisLink, store: str
) -> None:
    """Away, or without its bucket: Redis knows the version, holds no payload and counts as up; PostgreSQL has it."""
    url = s3 if "no-such" in store else "http://127.0.0.1:9"
    cache = ResourceCache(link, DOCUMENT, open_objects(settings_of(stack, url, store)))
    assert await cache.put(TABLE.key, head(1), BIG, is_impersonal=True)
    assert (await cache.heads([TABLE.key]))[0] == head(1)
    assert await cache.payload(TABLE.key, 1) is None
    assert cache.is_up
    await link.client.set(TABLE.key, b"1\n" + POINTER + name_of("never stored").encode())
    assert await cache.payload(TABLE.key, 1) is None


@pytest.mark.parametrize("store", ["bucket", "ftp://bucket", "s3://"])
def test_an_address_that_cannot_be_used_is_named(stack: Stack, store: str) -> None:
    """Before anything is served."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_OBJECT_STORE"):
        open_objects(settings_of(stack, "http://127.0.0.1:9", store))


@pytest.fixture
async def pages(stack: Stack, cache: ResourceCache, link: RedisLink) -> AsyncIterator[tuple[DocumentMaker, Any, Any]]:
    """A maker of two pages, and what reads them in a process without copies."""

    class Built:
        payload, caused_by = PAGE, ""

    async def build(_tx: Any, _about: str, _now_ms: int) -> Any:
        return Built

    async def window(_tx: Any, _about: str, _now_ms: int) -> Any:
        return type("Window", (), {"payload": b'{"windows":{}}', "caused_by": ""})

    async with own_database(stack) as context:
        made = {"league_table": build, "predictions_user": build, "match_window": window}
        maker = DocumentMaker(LEAGUE_RULES, made, lambda: context.codec, cache, lambda: NOW)
        copies = Copies()
        yield (
            maker,
            context.pool,
            Documents(
                maker, pool=lambda: context.pool, cache=cache, copies=copies,
                lease=CopyLease(await address_of(stack, context), copies, fresh_id()),
                locks=RegenerationLocks(link), clock=lambda: NOW,
            ),
        )  # fmt: skip


async def test_a_page_is_read_through_its_pointer(
    pages: tuple[DocumentMaker, Any, Documents], cache: ResourceCache, link: RedisLink
) -> None:
    """It is built and published as by the materializer, then read by a process without a copy of it; a private one stays in
    Redis.
    """
    maker, pool, documents = pages
    wanted = [BuildRequest(page, "test", is_forced=True) for page in (TABLE, OWN)]
    for _ in range(2):
        async with transaction(pool) as tx:
            await maker.make(tx, pool, wanted)
        await maker.tell(pool, [TABLE.key, OWN.key])
    assert (await link.client.get(TABLE.key)).startswith(b"2\n" + POINTER)
    assert POINTER not in await link.client.get(OWN.key)
    for page in (TABLE, OWN):
        served = await documents.read(page)
        assert served.head.version == 2
        assert await documents.payload(page, served.head, IDENTITY) == PAGE


@pytest.mark.requirement("R4.35")
async def test_callers_that_find_all_connections_in_use_do_not_end_the_link(stack: Stack) -> None:
    """Eight connections are few: who waited for one in vain was not answered, but Redis is not away."""
    one = RedisLink(stack.redis, connections_max=1)
    assert await one.probe()
    try:
        held = await one.client.connection_pool.get_connection()

        with pytest.raises(RedisAwayError, match="in use"):
            await one.run(one.client.ping())
        assert one.is_up
        await one.client.connection_pool.release(held)

        async def answers() -> bool:
            return bool(await one.run(one.client.ping()))

        await until(answers, "the connection is free again")
    finally:
        await one.close()
