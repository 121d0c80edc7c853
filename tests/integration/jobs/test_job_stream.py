"""Watching jobs on real parts, by server-sent events and by WebSocket: resuming, gaps, lost parts, who may, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from highwater.api.jobs import stream as job_stream
from highwater.connectors.jobs.progress import Progress
from highwater.connectors.postgres.pool import open_pool
from highwater.connectors.redis.link import RedisLink, open_redis
from tests.integration.api_server import Api, Seeds, running_api, wait_until
from tests.integration.connecting import until
from tests.integration.jobs.watching import (
    ADA,
    BOB,
    change_job,
    event_source,
    is_quiet,
    job_socket,
    materialize,
    new_id,
    rest,
    said,
    seqs,
    step,
    steps,
    store_job,
)

KEYS = f"admin:root-key,viewer:eye-key,viewer:ada-key:{ADA},viewer:bob-key:{BOB},editor:pen-key:{BOB}"


@dataclass
class Jobs:
    """Jobs that tell what the test says."""

    seeds: Seeds
    link: RedisLink
    progress: Progress

    async def published(self, job_id: str, events: list[Any], *, status: str = "running") -> None:
        """Stored, and shown by the materializer."""
        last = events[-1].value
        changed = {"seq": last["seq"], "progress_pct": last["progress_pct"], "status": status}
        # Changed now, as the engine does it: a look before the materializer shows the events must not take them for lost.
        now = (await self.seeds.run("SELECT clock_timestamp() AS now"))[0]["now"]
        await change_job(self.seeds, job_id, updated_at=now, **changed)
        await materialize(self.progress, events)

    async def job(self, count: int = 0, *, is_done: bool = False, **columns: Any) -> str:
        """A job that has published N events."""
        job_id = await store_job(self.seeds, **columns)
        if count:
            status = "completed" if is_done else "running"
            await self.published(job_id, steps(job_id, 1, count, is_done=is_done), status=status)
        return job_id


@pytest.fixture
async def jobs(seeds: Seeds, redis_url: str) -> AsyncIterator[Jobs]:
    """Jobs in the API's stores."""
    link = await open_redis(redis_url)
    async with await open_pool(seeds.url, size_max=2) as pool:
        yield Jobs(seeds, link, Progress(pool, link))
    await link.close()


@pytest.fixture(autouse=True)
def _nobody_listens(api, guarded) -> None:
    """The listeners of the test before have left: the shared reader starts over, with the times that the test sets."""
    for running in (api, guarded):
        wait_until(lambda app=running.app: not app.state.jobs.watchers._tasks, "nobody listens")


async def of_socket(api: Api, job_id: str, after: str | None = None, token: str | None = None) -> list[dict[str, Any]]:
    """Every message of a socket up to its end by 1000."""
    async with job_socket(api, job_id, after, token) as connection:
        found, code = await rest(connection)
    assert code == 1000
    return found


async def of_stream(api: Api, job_id: str, after: str | None = None, token: str | None = None) -> list[dict[str, Any]]:
    """Every event of a stream up to its end."""
    async with event_source(api, job_id, after, token) as source:
        return await source.all()


@asynccontextmanager
async def listening(way: str, api: Api, job_id: str, after: str | None = None) -> AsyncIterator[Any]:
    """An open stream or socket; calling it returns the next frames."""
    if way == "sse":
        async with event_source(api, job_id, after) as source:
            yield source.next
    else:
        async with job_socket(api, job_id, after) as connection:
            yield lambda: said(connection)


BOTH = pytest.mark.parametrize("way", ["sse", "ws"])
WAYS = {"sse": of_stream, "ws": of_socket}


# -- history and resuming -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.21")
@BOTH
async def test_250_events_resumed_from_ten_ids(api, jobs, way):
    """Exactly the newest 200 are kept; a client that returns with one of their ids gets everything after it, once, in order."""
    job = await jobs.job(250, is_done=True)
    assert await jobs.link.client.xlen(f"gen_progress:{job}") == 200
    places = [50 + int(sha256(bytes([n])).hexdigest(), 16) % 200 for n in range(10)]
    assert len(set(places)) > 5
    for place in places:
        told = await WAYS[way](api, job, f"{place}-0")
        assert seqs(told) == list(range(place + 1, 251))
        assert {one["event_type"] for one in told[:-1]} <= {"slide_completed"}
        assert told[-1]["event_type"] == "generation_done"


@pytest.mark.requirement("R2.21")
@BOTH
async def test_an_id_that_was_trimmed_away_is_a_gap(api, jobs, way):
    """It is reported as a gap, with the state of the job; then all kept entries. So is the beginning of a long job."""
    job = await jobs.job(250, is_done=True)
    for after, place in (("3-0", 3), (None, 0)):
        gap, snapshot, *held = await WAYS[way](api, job, after)
        expected = {"id": "50-0", "event_type": "gap", "after": f"{place}-0", "missing": 50 - place}
        assert gap == expected
        assert (snapshot["event_type"], snapshot["id"]) == ("snapshot", "50-0")
        assert (snapshot["status"], snapshot["progress_pct"], snapshot["seq"]) == ("completed", 100, 250)
        assert seqs(held) == list(range(51, 251))
    # A client that got the gap and returns does not get it again.
    assert seqs(await WAYS[way](api, job, "50-0")) == list(range(51, 251))


async def test_an_event_as_it_is_served(api, jobs):
    """Numbers are numbers, a time is ISO 8601, unknown fields are left out; the same on both ways."""
    job = await jobs.job()
    first = step(job, 1, "slide_started", pct=6, slide_number=2, slide_id="s2", slide_title="Why\nnow")
    last = step(job, 2, "error", pct=6, error_message="no model")
    await jobs.published(job, [first, last], status="failed")
    expected = [
        {
            "id": "1-0",
            "event_type": "slide_started",
            "slide_number": 2,
            "slide_id": "s2",
            "slide_title": "Why\nnow",
            "timestamp": "2023-11-14T22:13:20.001Z",
            "progress_pct": 6,
        },
        {
            "id": "2-0",
            "event_type": "error",
            "timestamp": "2023-11-14T22:13:20.002Z",
            "error_message": "no model",
            "progress_pct": 6,
        },
    ]
    assert await of_stream(api, job) == expected
    assert await of_socket(api, job) == expected


@pytest.mark.requirement("R2.20")
@BOTH
async def test_what_comes_while_one_listens(api, jobs, way):
    """History first, then each batch as it comes, once and in order; a redelivered event is not sent again."""
    job = await jobs.job(3)
    async with listening(way, api, job) as heard:
        told = [await heard() for _ in range(3)]
        for first, last in ((4, 4), (5, 30), (20, 30), (31, 120)):
            await jobs.published(job, steps(job, first, last))
        told += [await heard() for _ in range(117)]
        await jobs.published(job, [step(job, 121, "generation_done", pct=100)], status="completed")
        told.append(await heard())
        assert seqs(told) == list(range(1, 122))


@pytest.mark.requirement("R2.20")
async def test_many_listeners_of_a_job_hear_the_same(api, jobs):
    """Each from its own place, over one reader."""
    job = await jobs.job(40)
    async with contextlib.AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(event_source(api, job, f"{n}-0")) for n in range(0, 40, 2)]
        await jobs.published(job, steps(job, 41, 60, is_done=True), status="completed")
        for n, source in zip(range(0, 40, 2), sources, strict=True):
            assert seqs(await source.all()) == list(range(n + 1, 61))
    wait_until(lambda: not api.app.state.jobs.watchers._channels, "nobody listens")


async def test_a_job_that_has_ended(api, jobs):
    """204 after its last event, so that a browser does not reconnect; a socket is closed by 1000 at once."""
    job = await jobs.job(5, is_done=True)
    async with api.client() as client:
        answer = await client.get(f"/api/jobs/{job}/events", headers={"Last-Event-ID": "5-0"})
        assert (answer.status_code, answer.content) == (204, b"")
    assert await of_socket(api, job, "5-0") == []
    assert seqs(await of_stream(api, job, "4-0")) == [5]


async def test_ids_that_nobody_was_given(api, jobs):
    """400, or 4400: no id, or one beyond the last."""
    job = await jobs.job(5)
    async with api.client() as client:
        for bad in ("6-0", "1-1", "x", "-1", "$"):
            answer = await client.get(f"/api/jobs/{job}/events", headers={"Last-Event-ID": bad})
            assert answer.status_code == 400, bad
        assert (await client.get(f"/api/jobs/{new_id()}/events")).status_code == 404
        assert (await client.get("/api/jobs/x/events")).status_code == 422
    assert await closed(api, job, "6-0") == 4400
    assert await closed(api, new_id()) == 4404
    assert await closed(api, "x") == 4400


async def closed(api: Api, job_id: str, after: str | None = None, token: str | None = None, **more: Any) -> int:
    """The code with which a socket is closed."""
    async with job_socket(api, job_id, after, token, **more) as connection:
        found, code = await rest(connection)
    assert found == []
    return code


# -- lost entries ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.22")
async def test_a_lost_wake_up_is_made_good(api, jobs, monkeypatch):
    """An entry without a wake-up is sent at the next check."""
    monkeypatch.setattr(job_stream, "LOOK_SECONDS", 0.3)
    job = await jobs.job(1)
    async with event_source(api, job) as source:
        assert await source.next() is not None
        await asyncio.sleep(0.5)
        fields = {"event_type": "slide_completed", "timestamp": "1", "progress_pct": "9"}
        await jobs.link.client.xadd(f"gen_progress:{job}", fields, id="2-0")
        told = await source.next(5)
        assert told is not None
        assert told["id"] == "2-0"


@BOTH
async def test_a_stream_that_is_gone_is_a_gap(api, jobs, way, monkeypatch):
    """After FLUSHALL: a new client gets the state of the job, and then the later events."""
    monkeypatch.setattr(job_stream, "LOOK_SECONDS", 0.3)
    job = await jobs.job(10)
    await jobs.link.client.flushdb()
    async with listening(way, api, job, "4-0") as late:
        gap, snapshot = await late(), await late()
        assert (gap["event_type"], gap["id"], gap["missing"]) == ("gap", "10-0", 6)
        assert (snapshot["status"], snapshot["seq"]) == ("running", 10)
        await jobs.published(job, steps(job, 11, 12))
        assert seqs([await late(), await late()]) == [11, 12]


@BOTH
async def test_who_has_heard_everything_misses_nothing(api, jobs, way, monkeypatch):
    """A lost stream is not a gap for a client that was at its end."""
    monkeypatch.setattr(job_stream, "LOOK_SECONDS", 0.2)
    job = await jobs.job(10)
    async with listening(way, api, job) as there:
        assert seqs([await there() for _ in range(10)]) == list(range(1, 11))
        await jobs.link.client.flushdb()
        assert await is_quiet(there, 1.0)
    async with listening(way, api, job, "10-0") as there:
        assert await is_quiet(there, 1.0)
        await jobs.published(job, steps(job, 11, 12))
        assert seqs([await there(), await there()]) == [11, 12]


@BOTH
async def test_events_that_were_lost_between_are_a_gap(api, jobs, way):
    """Redis lost some that a listener has not received: it gets a gap, and continues."""
    job = await jobs.job(3)
    async with listening(way, api, job) as heard:
        assert seqs([await heard() for _ in range(3)]) == [1, 2, 3]
        await change_job(jobs.seeds, job, seq=6)
        await jobs.link.client.flushdb()
        await jobs.published(job, steps(job, 7, 8))
        gap, snapshot = await heard(), await heard()
        assert (gap["event_type"], gap["after"], gap["id"], gap["missing"]) == ("gap", "3-0", "6-0", 3)
        assert (snapshot["event_type"], snapshot["seq"]) == ("snapshot", 8)
        assert seqs([await heard(), await heard()]) == [7, 8]


@BOTH
async def test_a_job_that_ended_long_ago(api, jobs, way):
    """Its stream has expired: a gap, how it ended, and the end."""
    job = await jobs.job(5, is_done=True)
    await jobs.link.client.delete(f"gen_progress:{job}")
    gap, snapshot = await WAYS[way](api, job)
    assert (gap["event_type"], gap["missing"]) == ("gap", 5)
    assert (snapshot["event_type"], snapshot["status"], snapshot["id"]) == ("snapshot", "completed", "5-0")


async def test_what_is_on_its_way_is_no_gap(api, jobs, seeds):
    """A job whose last event is recent and not in Redis yet is waited for."""
    job = await jobs.job()
    now = (await seeds.run("SELECT clock_timestamp() AS now"))[0]["now"]
    await change_job(seeds, job, seq=1, updated_at=now)
    async with event_source(api, job) as source:
        await asyncio.sleep(0.3)
        await materialize(jobs.progress, [step(job, 1)])
        told = await source.next()
        assert told is not None
        assert (told["event_type"], told["id"]) == ("slide_completed", "1-0")


@BOTH
async def test_redis_stopped_and_started(stack, api, jobs, way, monkeypatch):
    """Listeners stay, also new ones, and get further events after its recovery."""
    monkeypatch.setattr(job_stream, "HEARTBEAT_SECONDS", 0.3)
    job = await jobs.job(2)
    async with listening(way, api, job, "2-0") as there:
        await asyncio.sleep(0.3)
        await asyncio.to_thread(stack.local.stop_part, "redis")
        try:
            assert await is_quiet(there, 1.5)
        finally:
            await asyncio.to_thread(stack.local.start_part, "redis")
        await until(lambda: jobs.link.is_up, "the link is back")
        await jobs.published(job, steps(job, 3, 4))
        told: list[dict[str, Any]] = []
        while len(told) < 2:
            one = await there()
            told += [one] if one["event_type"] != "heartbeat" else []
        assert seqs(told) == [3, 4]


# -- who may, and how many ------------------------------------------------------------------------------------------------


async def test_who_may_watch(guarded, jobs):
    """The job's user, an admin and a key without a user; other users with any role may not."""
    job = await jobs.job(2, is_done=True)
    for token in ("root-key", "eye-key", "ada-key"):
        assert seqs(await of_stream(guarded, job, None, token)) == [1, 2]
        assert seqs(await of_socket(guarded, job, None, token)) == [1, 2]
    refused = {"bob-key": (404, 4404), "pen-key": (404, 4404), "no-key": (401, 4401)}
    for token, (status, code) in refused.items():
        async with guarded.client(token) as client:
            assert (await client.get(f"/api/jobs/{job}/events")).status_code == status
        assert await closed(guarded, job, None, token) == code
    async with job_socket(guarded, job, subprotocols=["highwater.bearer.ada-key"]) as connection:
        assert (await said(connection))["id"] == "1-0"


async def test_a_page_of_another_site_may_not_watch(api, jobs):
    """An API without keys is open to pages of this machine only; the handshake is refused."""
    job = await jobs.job(1)
    with pytest.raises(InvalidStatus) as refused:
        await closed(api, job, origin="https://evil.example")
    assert refused.value.response.status_code == 403


async def test_a_session_that_is_ended_ends_its_streams(guarded, jobs, monkeypatch):
    """At the next look; a session of the organization may watch."""
    monkeypatch.setattr(job_stream, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr("highwater.api.core.sockets.RECHECK_SECONDS", 0.2)
    job = await jobs.job(1)
    async with guarded.client("root-key") as client:
        body = {"user_id": "eve", "organization_id": "acme"}
        session = (await client.post("/api/sessions", json=body)).json()["session_id"]
        other = (await client.post("/api/sessions", json={**body, "organization_id": "else"})).json()["session_id"]
        async with guarded.client(other) as stranger:
            assert (await stranger.get(f"/api/jobs/{job}/events")).status_code == 404
        async with (
            event_source(guarded, job, None, session) as source,
            job_socket(guarded, job, None, session) as socket,
        ):
            assert (await source.next()) is not None
            await client.delete(f"/api/sessions/{session}")
            assert await source.next() is None
            assert (await rest(socket))[1] == 4401


async def test_too_many_listeners(api, jobs, monkeypatch):
    """503, or 1013; one that leaves makes room."""
    job = await jobs.job(1)
    wait_until(lambda: not api.app.state.jobs.watchers.audience.count, "nobody listens")
    monkeypatch.setattr(api.app.state.jobs.watchers.audience, "_count_max", 1)
    async with event_source(api, job) as source, api.client() as client:
        assert (await source.next()) is not None
        assert (await client.get(f"/api/jobs/{job}/events")).status_code == 503
        assert await closed(api, job) == 1013
    wait_until(lambda: not api.app.state.jobs.watchers.audience.count, "the listener has left")
    async with job_socket(api, job) as connection:
        assert (await said(connection))["id"] == "1-0"


async def test_heartbeats_and_pings(api, jobs, monkeypatch):
    """A quiet stream says that it lives; a socket answers a ping with its place."""
    monkeypatch.setattr(job_stream, "HEARTBEAT_SECONDS", 0.2)
    job = await jobs.job(1)
    async with event_source(api, job) as source, job_socket(api, job) as connection:
        assert (await source.next()) is not None
        with pytest.raises(TimeoutError):
            await source.next(0.7)
        assert ": heartbeat" in source.comments
        assert (await said(connection))["id"] == "1-0"
        await connection.send(json.dumps({"type": "ping"}))
        told = []
        while {"event_type": "pong", "id": "1-0"} not in told or {"event_type": "heartbeat"} not in told:
            told.append(await said(connection))


@pytest.mark.requirement("R2.23")
async def test_sockets_are_known_by_their_user(api, jobs, monkeypatch):
    """R2.23: a member `{server}:{connection}` scored by its last beat, 300 s; lost ones are pruned, gone ones go."""
    monkeypatch.setattr(job_stream, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(job_stream, "BEAT_SECONDS", 0.1)
    client = jobs.link.client
    job = await jobs.job(1, user_id=BOB)
    now = api.clock()
    await client.zadd(f"ws_connections:{BOB}", {"dead:1": now - 300_500, "other:1": now - 200_000})
    async with job_socket(api, job) as first, job_socket(api, job) as second:
        await said(first)
        await said(second)
        members = dict(await client.zrange(f"ws_connections:{BOB}", 0, -1, withscores=True))
        names = {name.decode() for name in members} - {"other:1"}
        assert len(names) == 2
        assert {name.split(":")[0] for name in names} == {api.app.state.jobs.watchers._server_id}
        assert b"dead:1" not in members
        assert 290 < await client.ttl(f"ws_connections:{BOB}") <= 300
        scored = min(members[name.encode()] for name in names)

        async def is_renewed() -> bool:
            return all([await client.zscore(f"ws_connections:{BOB}", name) > scored for name in names])

        await until(is_renewed, "a later beat")

        server = api.app.state.jobs.watchers._server_id
        assert await counted(api) == {server: 2, "other": 1}
        await client.set("ws_connections:odd", "of another type")

    async def are_gone() -> bool:
        return await client.zrange(f"ws_connections:{BOB}", 0, -1) == [b"other:1"]

    await until(are_gone, "they have gone")
    assert await counted(api) == {"other": 1}
    api.clock.offset_ms += 101_000  # its process was killed: 301 s after its last report it is not counted
    try:
        assert await counted(api) == {}
    finally:
        api.clock.offset_ms -= 101_000


async def counted(api) -> dict[str, int]:
    """What an operator sees: open sockets by process, all of them Bob's."""
    found = (await api.get("/api/sockets")).json()
    assert found["users"] == ([{"user_id": BOB, "sockets": found["sockets"]}] if found["sockets"] else [])
    return {one["server_id"]: one["sockets"] for one in found["processes"]}


async def test_operators_count_sockets(guarded):
    """Unbound keys and admins only; the answer is 403 to a bound key."""
    codes = [(await guarded.get("/api/sockets", key)).status_code for key in ("root-key", "eye-key", "bob-key", None)]
    assert codes == [200, 200, 403, 401]


async def test_a_server_that_stops_ends_its_streams(own_settings, jobs):
    """Streams end, sockets are closed by 1001, within the time of a stop."""
    job = await jobs.job(1)
    with running_api(own_settings()) as stopping:
        async with event_source(stopping, job) as source, job_socket(stopping, job) as connection:
            assert (await source.next()) is not None
            await said(connection)
            stopping.stop()
            assert await source.next(5) is None
            assert (await rest(connection))[1] == 1001
        await asyncio.to_thread(stopping.thread.join, 8)
        assert not stopping.thread.is_alive()
