"""The limit of addresses over real Redis and HTTP (R4.36)."""

from __future__ import annotations

import asyncio
from functools import partial

import httpx2
import pytest

from highwater.connectors.identity.rate_limits import CallCounts
from highwater.connectors.redis.keys import LIVE_REQUESTS, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from tests.integration.api_server import Api, running_api
from tests.unit.identity.limit_cases import CASES, START_MS, WINDOW_MS, LimitCase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_redis_counts_as_the_law_says(link: RedisLink, case: LimitCase) -> None:
    """Two processes that share a Redis answer each case together; another address is not concerned."""
    processes = [CallCounts(link, case.requests_max, WINDOW_MS) for _ in range(2)]
    for number, step in enumerate(case.steps):
        found = await processes[number % 2].retry_after_ms("a", START_MS + step.after_ms)
        assert found == step.retry_after_ms, step
    assert await processes[0].retry_after_ms("b", START_MS) == 0


async def test_calls_of_one_turn_are_counted_one_by_one(link: RedisLink) -> None:
    """All that two processes ask at once: as many are admitted as the limit has, the first of each; the others hear when."""
    processes = [CallCounts(link, 5, WINDOW_MS) for _ in range(2)]
    asked = [[one.ask(address, START_MS) for _ in range(4) for address in ("a", "b")] for one in processes]
    found = [await asyncio.gather(*futures) for futures in asked]
    for place in range(2):
        of_address = [told[place::2] for told in found]
        assert sum(told.count(0) for told in of_address) == 5
        assert all(told == sorted(told) for told in of_address)  # 0 first
        assert {wait for told in of_address for wait in told} == {0, WINDOW_MS}


async def test_a_redis_that_lost_its_scripts_counts_on(link: RedisLink) -> None:
    """A restarted one has none: it gets the script again, and no call is counted twice."""
    requests = CallCounts(link, 2, WINDOW_MS)
    for expected in (0, 0, WINDOW_MS):
        await link.client.script_flush()
        assert await requests.retry_after_ms("a", START_MS) == expected


async def test_a_lowered_limit_counts_at_once(link: RedisLink) -> None:
    """If there are more known requests than a new limit, the newest count, and the rest is dropped."""
    for after_ms in range(4):
        assert await CallCounts(link, 4, WINDOW_MS).retry_after_ms("a", START_MS + after_ms) == 0
    assert await CallCounts(link, 2, WINDOW_MS).retry_after_ms("a", START_MS + 4) == WINDOW_MS - 2


async def test_a_process_that_is_behind_reads_what_is_ahead_of_it_alone(link: RedisLink) -> None:
    """Times of another process that is ahead become its own, however many; of all others none is read."""
    requests = CallCounts(link, 2_000, WINDOW_MS)
    name = key(LIVE_REQUESTS, address="a")
    times = [START_MS + 5] * 250 + [START_MS] * 1_000
    await link.client.rpush(name, *times)
    await link.client.config_resetstat()
    assert await requests.retry_after_ms("a", START_MS + 1) == 0
    found = [int(at) for at in await link.client.lrange(name, 0, -1)]
    assert found == [START_MS + 1] * 251 + [START_MS] * 1_000
    for _ in range(3):
        assert await requests.retry_after_ms("a", START_MS + 1) == 0
    assert (await link.client.info("commandstats"))["cmdstat_lrange"][
        "calls"
    ] == 3 + 1  # 250 in hundreds, and ours above


async def test_an_address_takes_no_more_room_than_its_limit_and_goes(link: RedisLink) -> None:
    """The stored times are bounded by the limit, and the key ends with its window."""
    requests = CallCounts(link, 3, WINDOW_MS)
    for after_ms in range(0, 10 * WINDOW_MS, 1_000):
        await requests.retry_after_ms("a", START_MS + after_ms)
    name = key(LIVE_REQUESTS, address="a")
    assert await link.client.llen(name) == 3
    assert 0 < await link.client.pttl(name) <= WINDOW_MS


async def test_without_redis_nobody_is_counted_here() -> None:
    """The caller gets an error, and counts by itself."""
    with pytest.raises(RedisAwayError):
        await CallCounts(RedisLink(None), 1).retry_after_ms("a", START_MS)


@pytest.fixture(scope="module")
def own_settings(own_settings):
    """Three live requests are allowed."""
    return partial(own_settings, HIGHWATER_LIVE_REQUESTS_MAX=3)


async def _live(client: httpx2.AsyncClient, address: str, **more: str) -> httpx2.Response:
    return await client.get("/api/matches/live", headers={"X-Forwarded-For": address, **more})


@pytest.mark.requirement("R4.36")
async def test_two_processes_admit_an_address_as_often_as_one(own_settings, link: RedisLink) -> None:
    """304 counts, pages that are not live do not; beyond the limit it is 429 with seconds to wait, until the window ends."""
    settings = own_settings(HIGHWATER_TRUSTED_PROXIES="127.0.0.0/8")
    with running_api(settings) as one, running_api(settings) as two:
        async with one.client() as first, two.client() as second:
            tag = (await _live(first, "198.51.100.1")).headers["etag"]
            assert (await _live(second, "198.51.100.1", **{"If-None-Match": tag})).status_code == 304
            for path in ("/api/ads", "/api/leaderboard"):
                assert (await first.get(path, headers={"X-Forwarded-For": "198.51.100.1"})).status_code == 200
            await _is_third_and_last(first, second)
            for api in (one, two):
                api.clock.offset_ms += 10_000
            assert (await _live(first, "198.51.100.1")).status_code == 200


async def _is_third_and_last(first: httpx2.AsyncClient, second: httpx2.AsyncClient) -> None:
    answers = [await _live(client, "203.0.113.5, 198.51.100.1") for client in (first, second, first)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    for answer in answers[1:]:
        assert answer.headers["content-type"] == "application/problem+json"
        assert 1 <= int(answer.headers["retry-after"]) <= 10
        assert "etag" not in answer.headers
    assert (await _live(second, "198.51.100.2")).status_code == 200


async def test_nobody_is_believed_who_is_not_named(own_settings, link: RedisLink) -> None:
    """Without trusted proxies the address is that of the connection, on this machine too, and a match counts as a live page."""
    with running_api(own_settings()) as running:
        async with running.client() as client:
            statuses = [(await _live(client, f"198.51.100.{number}")).status_code for number in range(2)]
            statuses += [(await client.get("/api/matches/nope")).status_code for _ in range(2)]
    assert statuses == [200, 200, 404, 429]


async def test_while_redis_is_away_each_process_counts(own_settings) -> None:
    """A Redis that was never there changes nothing of the rule."""
    settings = own_settings(REDIS_URL="redis://127.0.0.1:1/0")
    with running_api(settings, is_awaited=False) as running:
        await _database_is_there(running)
        async with running.client() as client:
            statuses = [(await _live(client, "x")).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]


async def _database_is_there(running: Api) -> None:
    from tests.integration.api_server import eventually

    async def is_ready() -> bool:
        async with running.client() as client:
            return (await client.get("/readyz?exclude=redis")).status_code == 200

    await eventually(is_ready, "all but Redis is ready")
