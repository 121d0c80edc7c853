"""The limits of API keys and users on real Redis and HTTP (R2.27 to R2.31)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from highwater.api.core.auth import key_id_of
from highwater.connectors.identity.rate_limits import CallCounts, RateSubject
from highwater.connectors.redis.link import RedisAwayError, RedisLink, open_redis
from highwater.deploy.local.redis import Redis
from highwater.streams.identity.rate_limits import WINDOW_SECONDS, minute_of
from highwater.streams.telemetry import RATE_LIMIT_OPEN
from tests.integration.api_server import NOW, Api, Seeds, eventually, running_api
from tests.integration.connecting import fresh

MINUTE_MS = WINDOW_SECONDS * 1000
NOW_MS = 1_700_000_000_000
KEYS = "admin:root-key,editor:own-key:uma"
SESSIONS = "/api/sessions"
KIND = {"Content-Type": "application/json"}


# -- counting --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.31")
async def test_no_two_requests_have_one_number(redis_url, link: RedisLink) -> None:
    """Concurrent counts of two processes are 1 to the number of requests, for the key and for each user."""
    other = await open_redis(redis_url)
    processes = [CallCounts(link, 15), CallCounts(other, 15)]
    asked = [RateSubject("k", f"u{n % 7}") for n in range(600)]
    found = await asyncio.gather(*(processes[n % 2].count(subject, NOW_MS) for n, subject in enumerate(asked)))
    await other.close()
    assert sorted(counted.of_key or 0 for counted in found) == list(range(1, 601))
    for user in range(7):
        numbers = [counted.of_user or 0 for n, counted in enumerate(found) if n % 7 == user]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.requirement("R2.27", "R2.30")
async def test_the_keys_are_those_of_the_design_and_go_after_two_minutes(link: RedisLink) -> None:
    """R2.27, R2.30: one counter a key and minute, one a user and minute, 120 s."""
    await CallCounts(link, 15).count(RateSubject("k", "u"), NOW_MS)
    names = sorted(name.decode() for name in await link.client.keys("*"))
    assert names == ["ratelimit:k:202311142213", "ratelimit:user:u:202311142213"]
    assert [await link.client.get(name) for name in names] == [b"1", b"1"]
    for name in names:
        assert 118 <= await link.client.ttl(name) <= 120


async def test_one_round_trip_for_all_who_ask_at_once(link: RedisLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of one turn of the event loop are one exchange with Redis; a key that all name is one command."""
    counts = CallCounts(link, 15)
    await counts.count(RateSubject("warm"), NOW_MS)
    sent: list[int] = []
    replies = link.replies

    async def noted(commands: Any) -> Any:
        sent.append(len(commands))
        return await replies(commands)

    monkeypatch.setattr(link, "replies", noted)
    before = (await link.client.info("commandstats"))["cmdstat_expire"]["calls"]
    await asyncio.gather(*(counts.count(RateSubject("k", "u", "o", "u"), NOW_MS) for _ in range(50)))
    after = (await link.client.info("commandstats"))["cmdstat_expire"]["calls"]
    assert (sent, after - before) == ([6], 2)


async def test_a_minute_turns_and_the_last_one_stays_as_it_was(link: RedisLink) -> None:
    """The given time decides: a late call of the old minute counts there."""
    counts = CallCounts(link, 15)
    turn = NOW_MS - NOW_MS % MINUTE_MS + MINUTE_MS
    times = [turn - 1, turn, turn - 1, turn + MINUTE_MS - 1, turn + MINUTE_MS]
    assert [(await counts.count(RateSubject("k"), now_ms)).of_key for now_ms in times] == [1, 1, 2, 2, 1]


async def test_a_key_of_another_type_concerns_nobody_else(link: RedisLink) -> None:
    """A caller that cannot be counted gets an error; others in the same round trip are counted."""
    counts = CallCounts(link, 15)
    await link.client.hset(f"ratelimit:user:odd:{minute_of(NOW_MS)}", "a", 1)
    asked = [counts.count(RateSubject("k", user), NOW_MS) for user in ("even", "odd", "even")]
    one, two, three = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(two, RedisAwayError)
    assert [one.of_user, three.of_user, one.of_key, three.of_key] == [1, 2, 1, 3]  # type: ignore[union-attr]


async def test_who_goes_away_leaves_the_others_their_numbers(link: RedisLink) -> None:
    """A request that ends while it is counted, and a flush that is cut off, never give an answer to another question."""
    counts = CallCounts(link, 15)
    asked = [asyncio.create_task(counts.count(RateSubject(f"k{n}"), NOW_MS)) for n in range(20)]
    await asyncio.sleep(0)
    asked[3].cancel()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [getattr(one, "of_key", None) for one in found] == [1, 1, 1, None, *[1] * 16]
    for _ in range(20):
        commands = [("INCRBY", "cut", 1), ("EXPIRE", "cut", 120)] * 50
        cut = asyncio.create_task(link.replies(commands))
        await asyncio.sleep(0.0002)
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        assert (await link.client.get("nothing"), await link.client.echo("said")) == (None, b"said")


async def test_without_redis_nobody_is_counted() -> None:
    """The caller gets an error, and decides."""
    with pytest.raises(RedisAwayError):
        await CallCounts(RedisLink(None), 15).count(RateSubject("k"), NOW_MS)


# -- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    """Plans that are soon used up."""
    path = tmp_path / "plans.toml"
    limits = {"free": 2, "pro": 5, "team": 5, "enterprise": 4}
    path.write_text("\n".join(f"[plans.{name}]\nrequests_per_minute = {n}" for name, n in limits.items()))
    return path


@pytest.fixture
def limited(own_settings, plans: Path):
    """Settings of an API with these plans."""
    return partial(own_settings, HIGHWATER_PLANS=plans, HIGHWATER_API_KEYS=KEYS)


def _at_the_beginning_of_a_minute(*apis: Api) -> None:
    """Move the clocks to a second after a minute's turn, so that none turns by itself."""
    left_ms = MINUTE_MS - apis[0].clock() % MINUTE_MS
    for api in apis:
        api.clock.offset_ms += left_ms + 1_000


async def _post(client: httpx2.AsyncClient, user: str | None = None, **more: Any) -> httpx2.Response:
    return await client.post(SESSIONS, json={"user_id": user or fresh("u"), **more})


@pytest.mark.requirement("R2.29")
async def test_two_processes_allow_a_key_as_often_as_one(limited, link: RedisLink) -> None:
    """The fifth of four is refused by whichever is asked, with what a client needs; refused ones count; the minute turns."""
    settings = limited()
    with running_api(settings) as one, running_api(settings) as two:
        _at_the_beginning_of_a_minute(one, two)
        async with one.client("root-key") as first, two.client("root-key") as second:
            answers = [await _post(client) for client in (first, second, first, second, first, second)]
            assert [answer.status_code for answer in answers] == [201, 201, 201, 201, 429, 429]
            assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["3", "2", "1", "0", "0", "0"]
            _is_a_refusal(answers[4], limit=4)
            counted = await link.client.get(f"ratelimit:{key_id_of(b'root-key')}:{minute_of(one.clock())}")
            assert counted == b"6"
            one.clock.offset_ms += MINUTE_MS
            two.clock.offset_ms += MINUTE_MS
            assert (await _post(second)).headers["ratelimit"].startswith('"key";r=3;t=')
    assert not [name for name in await link.client.keys("*") if b"root-key" in name]


def _is_a_refusal(answer: httpx2.Response, limit: int) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    wait = int(answer.headers["retry-after"])
    assert 1 <= wait <= 59
    assert answer.headers["x-ratelimit-limit"] == str(limit)
    assert answer.headers["ratelimit-policy"] == f'"key";q={limit};w=60'
    assert answer.headers["ratelimit"] == f'"key";r=0;t={wait}'
    assert answer.json()["violated-policies"] == ["key"]


async def test_every_answer_tells_what_is_left(limited, link: RedisLink) -> None:
    """A malformed body and a forbidden one are answered with the fields too, and a refusal comes before the body is read."""
    with running_api(limited()) as api:
        _at_the_beginning_of_a_minute(api)
        async with api.client("own-key") as client:
            answers = [await client.post(SESSIONS, content=b"{", headers=KIND), await _post(client, "somebody-else")]
            answers.append(await client.post(SESSIONS, content=b"{", headers=KIND))
            assert [answer.status_code for answer in answers] == [422, 403, 429]
            assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
            assert answers[2].json()["violated-policies"] == ["key", "user"]
            assert (await client.get(SESSIONS)).status_code == 405
        async with api.client("no-key") as client:
            answer = await _post(client)
            assert (answer.status_code, answer.headers.get("ratelimit")) == (401, None)


@pytest.mark.requirement("R2.29")
async def test_a_refusal_reads_no_body(limited, link: RedisLink) -> None:
    """R2.29: a client that has sent nothing but its headers is refused."""
    with running_api(limited()) as api:
        _at_the_beginning_of_a_minute(api)
        async with api.client("own-key") as client:
            for _ in range(2):
                await client.post(SESSIONS, content=b"{", headers=KIND)
        head = (
            f"POST {SESSIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Authorization: Bearer own-key\r\nContent-Length: 10000000\r\n\r\n"
        )
        while True:
            uncounted = RATE_LIMIT_OPEN._value.get()
            line = await _first_line(api.url, head)
            if RATE_LIMIT_OPEN._value.get() == uncounted:
                break  # else Redis did not answer in time on a busy machine, and callers are admitted
        assert line.startswith(b"HTTP/1.1 429 ")


async def _first_line(url: str, head: str) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode())
    line = await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    return line


@pytest.mark.requirement("R2.30")
async def test_the_plan_of_a_user_decides(limited, link: RedisLink) -> None:
    """A session has the plan it was made with, a key of a user that of the user; key and user are counted apart."""
    with running_api(limited()) as api:
        _at_the_beginning_of_a_minute(api)
        async with api.client("root-key") as root:
            session = (await _post(root, "uma", plan="pro", role="editor")).json()["session_id"]
        async with api.client(session) as client:
            answer = await _post(client)  # a session makes no sessions, but is counted
            assert (answer.status_code, answer.headers["ratelimit-policy"]) == (403, '"user";q=5;w=60')
        async with api.client("own-key") as client:
            answer = await _post(client, "uma")
            assert answer.headers["ratelimit-policy"] == '"key";q=2;w=60, "user";q=2;w=60'
            assert (answer.headers["ratelimit"].split(";t=")[0], answer.headers["x-ratelimit-remaining"]) == (
                '"key";r=1', "0",
            )  # fmt: skip
            await link.client.hset("us:uma", "plan", "team")
            answer = await _post(client, "uma")
            assert (answer.status_code, answer.headers["x-ratelimit-limit"]) == (201, "5")


async def test_the_plan_of_an_organization_decides_at_once(limited, seeds: Seeds, link: RedisLink) -> None:
    """A session of an organization has the plan that this has now, from its copy in Redis or, without one, from PostgreSQL."""
    org = fresh("org")
    await seeds.run("INSERT INTO organizations VALUES ($1, 'team', 'active', NULL, 1, 't/0/0', $2)", org, NOW)
    with running_api(limited()) as api:
        _at_the_beginning_of_a_minute(api)
        async with api.client("root-key") as root:
            session = (await _post(root, "ina", plan="free", organization_id=org)).json()["session_id"]
        async with api.client(session) as client:
            found = [(await _post(client)).headers["x-ratelimit-limit"]]
            await link.client.hset(f"plan_limits:{org}", "requests_per_minute", "7")
            found.append((await _post(client)).headers["x-ratelimit-limit"])
    assert found == ["5", "7"]


async def test_an_open_api_limits_nobody_who_is_not_named(limited, link: RedisLink) -> None:
    """Without keys, anonymous requests are not counted and get no fields."""
    with running_api(limited(HIGHWATER_API_KEYS="")) as api:
        async with api.client() as client:
            answers = [await _post(client) for _ in range(6)]
    assert {(answer.status_code, answer.headers.get("ratelimit")) for answer in answers} == {(201, None)}
    assert await link.client.keys("ratelimit:*") == []


@pytest.mark.requirement("R2.31")
async def test_while_redis_is_away_everything_is_allowed(limited, own_redis: Redis) -> None:
    """Redis is killed in the middle of a minute: refused callers are admitted, and counted as such; after its recovery, they
    are limited.
    """
    with running_api(limited(REDIS_URL=own_redis.address)) as api:
        _at_the_beginning_of_a_minute(api)
        async with api.client("own-key") as client:
            assert [(await client.post(SESSIONS, content=b"{", headers=KIND)).status_code for _ in range(3)] == [
                422,
                422,
                429,
            ]
            own_redis.process.kill()
            before = RATE_LIMIT_OPEN._value.get()
            answers = [await client.post(SESSIONS, content=b"{", headers=KIND) for _ in range(5)]
            assert {(answer.status_code, answer.headers.get("ratelimit")) for answer in answers} == {(422, None)}
            assert RATE_LIMIT_OPEN._value.get() - before == 5
            own_redis.process.start(own_redis.command())

            async def is_limited() -> bool:
                return (await client.post(SESSIONS, content=b"{", headers=KIND)).status_code == 429

            await eventually(is_limited, "Redis counts again")
