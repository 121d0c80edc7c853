"""The WebSocket of queries on real parts: its recipients, resuming, commands, and unavailable services."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from highwater.api.queries import stream as query_stream
from highwater.api.queries.stream import QueryHub, partition_of
from highwater.connectors.queries.deltas import DeltaWriter
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from highwater.streams.queries.runs import Run
from highwater.streams.queries.states import Status
from tests.integration.api_server import Api, Seeds, eventually, running_api, wait_until
from tests.integration.databases import allow_restarted
from tests.integration.queries.pipeline import STAGE_TOPIC, complete, new_id, publish, stage_event, store_run

ADA, BOB = "33333333-3333-4333-8333-333333333333", "44444444-4444-4444-8444-444444444444"
KEYS = f"admin:root-key,viewer:eye-key,viewer:ada-key:{ADA},viewer:bob-key:{BOB},viewer:tom-key:tom"
SILENCE_SECONDS = 0.7


class Ends:
    """Lets runs end: stored first, then published to the log, as the outbox does."""

    def __init__(self, stack: Any, seeds: Seeds, codec: Codec) -> None:
        self._stack, self._seeds, self._codec = stack, seeds, codec

    async def completed(self, user_id: str, answer: str = "42") -> tuple[str, Position]:
        """A run with an answer."""
        run = await store_run(self._seeds, user_id)
        await complete(self._seeds, run, answer)
        return run, await self.published(run, user_id, "COMPLETED")

    async def failed(self, user_id: str, error: str) -> tuple[str, Position]:
        """A run that failed."""
        run = await store_run(self._seeds, user_id, status="FAILED", error=error)
        return run, await self.published(run, user_id, "FAILED", error=error)

    async def published(self, run: str, user_id: str, status: str, **fields: Any) -> Position:
        """Only the event."""
        event = stage_event(run, user_id, status, **fields)
        return (await asyncio.to_thread(publish, self._stack.kafka, self._codec, STAGE_TOPIC, event))[0]


@pytest.fixture
def ends(stack, seeds: Seeds, codec: Codec) -> Ends:
    """Runs that end."""
    return Ends(stack, seeds, codec)


@asynccontextmanager
async def socket(api: Api, query: str = "", token: str | None = None, **more: Any) -> AsyncIterator[ClientConnection]:
    """A socket of a client."""
    url = api.url.replace("http://", "ws://") + "/api/ws" + (f"?{query}" if query else "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with connect(url, additional_headers=headers, proxy=None, close_timeout=2, **more) as connection:
        yield connection


async def published(connection: ClientConnection, seconds: float = 15.0) -> dict[str, Any]:
    """The next message."""
    return dict(json.loads(await asyncio.wait_for(connection.recv(), seconds)))


async def says(connection: ClientConnection, message: Any) -> dict[str, Any]:
    """The answer to a command."""
    await connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return await published(connection)


async def is_silent(connection: ClientConnection) -> bool:
    """Nothing comes before the answer to a ping; the log was read meanwhile."""
    await asyncio.sleep(SILENCE_SECONDS)
    return (await says(connection, {"type": "ping"}))["type"] == "pong"


async def closed(api: Api, query: str = "", token: str | None = None, first: Any = None, **more: Any) -> int:
    """The code with which a socket is closed."""
    async with socket(api, query, token, **more) as connection:
        if first is not None:
            await connection.send(first if isinstance(first, str) else json.dumps(first))
        with pytest.raises(ConnectionClosed) as ending:
            await published(connection)
        assert ending.value.rcvd is not None
        return int(ending.value.rcvd.code)


# -- recipients -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R1.30")
async def test_a_user_is_told_what_came_of_its_queries(api, ends):
    """Answer or error with the place in the log, on each of the user's sockets; of others' runs nothing."""
    ada, bob = new_id(), new_id()
    async with (
        socket(api, f"user_id={ada}") as first,
        socket(api, f"user_id={ada.upper()}") as second,
        socket(api, f"user_id={bob}") as other,
    ):
        run, place = await ends.completed(ada, "forty-two")
        expected = {"request_id": run, "status": "completed", "answer": "forty-two", "id": str(place)}
        assert [await published(first), await published(second)] == [expected, expected]
        await ends.published(run, ada, "RESPONDING")
        lost, place = await ends.failed(ada, "Max retries exceeded")
        expected = {"request_id": lost, "status": "failed", "error": "Max retries exceeded", "id": str(place)}
        assert [await published(first), await published(second)] == [expected, expected]
        assert await is_silent(other)


async def test_an_answer_is_told_while_it_is_written(api, ends, redis_url: str):
    """To sockets that request it and to no other user: a late one from the beginning, a new attempt from the start, then the
    answer.
    """
    ada, link = new_id(), RedisLink(redis_url)
    assert await link.probe()
    writer = DeltaWriter(link)
    run = Run(await store_run(ends._seeds, ada), ada, 1, "q", Status.RESPONDING, epoch=1, attempt=1)
    async with (
        socket(api, f"user_id={ada}&deltas=true") as one,
        socket(api, f"user_id={ada}") as plain,
        socket(api, f"user_id={new_id()}&deltas=true") as other,
    ):
        first = writer.of(run)
        first("All ")
        assert await published(one) == delta(run, 1, 0, "All ")
        first("is")
        assert await published(one) == delta(run, 1, 4, "is")
        async with socket(api, f"user_id={ada}&deltas=true") as late:
            assert await published(late) == delta(run, 1, 0, "All is")
            first.end()
            again = writer.of(replace(run, attempt=2))
            again("Well.")
            again.end()
            assert [await published(each) for each in (one, late)] == [delta(run, 2, 0, "Well.")] * 2
        await complete(ends._seeds, run.id, "Well.")
        await ends.published(run.id, ada, "COMPLETED")
        assert [(await published(each))["answer"] for each in (one, plain)] == ["Well."] * 2
        async with socket(api, f"user_id={ada}&deltas=true") as behind:
            for each in (one, plain, other, behind):
                assert await is_silent(each)
    assert await closed(api, f"user_id={ada}&deltas=perhaps") == 4400
    await writer.close()
    await link.close()


def delta(run: Run, attempt: int, start: int, text: str) -> dict[str, Any]:
    """A message of a piece."""
    return {"type": "delta", "request_id": run.id, "attempt": attempt, "from": start, "text": text}


@pytest.mark.requirement("R1.30")
async def test_keys_listen_to_their_user_only(guarded, ends):
    """A bound key needs not name its user; an unbound one names one."""
    async with (
        socket(guarded, token="ada-key") as ada,
        socket(guarded, f"user_id={BOB}", token="bob-key") as bob,
        socket(guarded, f"user_id={ADA}", token="root-key") as root,
        socket(guarded, f"user_id={ADA}", token="eye-key") as eye,
    ):
        run, _ = await ends.completed(ADA)
        assert {(await published(one))["request_id"] for one in (ada, root, eye)} == {run}
        assert await is_silent(bob)


async def test_who_may_not_listen_is_sent_away(api, guarded):
    """Each with the code that says why."""
    assert await closed(guarded, f"user_id={BOB}", "ada-key") == 4403
    assert await closed(guarded, f"user_id={ADA}", "no-key") == 4401
    assert await closed(guarded, f"user_id={ADA}", first={"type": "auth", "token": "no-key"}) == 4401
    assert await closed(guarded, f"user_id={ADA}", first={"type": "ping"}) == 4401
    assert await closed(guarded, f"user_id={ADA}", first="[]") == 4401
    assert await closed(guarded, "", "root-key") == 4400
    assert await closed(guarded, "user_id=a%0Ab", "root-key") == 4400
    assert await closed(api, "") == 4400
    with pytest.raises(InvalidStatus) as refused:
        await closed(api, f"user_id={ADA}", origin="https://evil.example")
    assert refused.value.response.status_code == 403
    async with socket(api, f"user_id={ADA}", origin="http://localhost:3000") as connection:
        assert (await says(connection, {"type": "ping"}))["type"] == "pong"


async def test_a_browser_names_its_key_by_subprotocol_or_first_message(guarded, ends):
    """The subprotocol is echoed, as browsers require; both then get events."""
    async with (
        socket(guarded, subprotocols=["highwater.bearer.ada-key"]) as by_subprotocol,
        socket(guarded) as by_message,
    ):
        assert by_subprotocol.subprotocol == "highwater.bearer.ada-key"
        await by_message.send(json.dumps({"type": "auth", "token": "ada-key"}))
        assert (await says(by_message, {"type": "ping"}))["type"] == "pong"
        run, _ = await ends.completed(ADA)
        assert {(await published(one))["request_id"] for one in (by_subprotocol, by_message)} == {run}


async def test_who_says_nothing_is_sent_away(guarded, monkeypatch):
    """4401 after the time to say so."""
    monkeypatch.setattr("highwater.api.core.sockets.AUTH_SECONDS_MAX", 0.2)
    assert await closed(guarded, f"user_id={ADA}") == 4401


async def test_a_session_that_is_ended_ends_its_socket(guarded, monkeypatch):
    """4401 at the next look."""
    monkeypatch.setattr("highwater.api.core.sockets.RECHECK_SECONDS", 0.2)
    async with guarded.client("root-key") as client:
        made = (await client.post("/api/sessions", json={"user_id": ADA})).json()["session_id"]
        async with socket(guarded, token=made) as connection:
            assert (await says(connection, {"type": "ping"}))["type"] == "pong"
            await client.delete(f"/api/sessions/{made}")
            with pytest.raises(ConnectionClosed) as ending:
                await published(connection)
            assert ending.value.rcvd is not None
            assert ending.value.rcvd.code == 4401


async def test_the_log_is_read_while_somebody_listens(api):
    """One consumer with the first socket, none after the last."""
    hub = api.app.state.queries.sockets
    wait_until(lambda: hub._task is None, "nobody listens")
    async with socket(api, f"user_id={ADA}"):
        first = hub._task
        assert first is not None
        async with socket(api, f"user_id={BOB}"):
            assert hub._task is first
    wait_until(lambda: hub._task is None, "the reading ends")
    assert hub._users == {}


# -- resuming -------------------------------------------------------------------------------------------------------------


async def test_a_socket_resumes_without_loss_or_repeat(api, ends):
    """Runs that ended meanwhile in order, each once, then live; by the address or by the first message."""
    user = new_id()
    async with socket(api, f"user_id={user}") as connection:
        await ends.completed(user, "0")
        last = (await published(connection))["id"]
    runs = [
        (await ends.completed(user, "a"))[0],
        (await ends.failed(user, "b"))[0],
        (await ends.completed(user, "c"))[0],
    ]
    await ends.completed(new_id(), "somebody else's")
    async with socket(api, f"user_id={user}&after={last}") as first, socket(api, f"user_id={user}") as second:
        await second.send(json.dumps({"type": "resume", "after": last}))
        for connection in (first, second):
            assert [(await published(connection))["request_id"] for _ in runs] == runs
        run, place = await ends.completed(user, "d")
        for connection in (first, second):
            message = await published(connection)
            assert (message["request_id"], message["id"]) == (run, str(place))
            assert await is_silent(connection)
    async with socket(api, f"user_id={user}&after={place}") as connection:
        assert await is_silent(connection)
        run, _ = await ends.completed(user, "e")
        assert (await published(connection))["request_id"] == run


async def test_sockets_that_come_and_go_under_load_miss_nothing(api, ends):
    """A client that reconnects after every message with its last id gets each run once, in the order of the log."""
    user, count = new_id(), 40
    async with socket(api, f"user_id={user}") as connection:
        await ends.completed(user, "first")
        last = (await published(connection))["id"]

    async def work() -> list[str]:
        return [(await ends.completed(user, str(number)))[0] for number in range(count)]

    async def listen(last: str) -> list[str]:
        seen: list[str] = []
        while len(seen) < count:
            async with socket(api, f"user_id={user}&after={last}") as connection:
                for _ in range(1 + len(seen) % 3):
                    message = await published(connection)
                    seen.append(message["request_id"])
                    last = message["id"]
                    if len(seen) == count:
                        break
        return seen

    *listened, runs = await asyncio.gather(listen(last), listen(last), listen(last), work())
    assert listened == [runs, runs, runs]


async def test_what_ends_while_a_socket_catches_up_is_told_once(api, ends, monkeypatch):
    """Live pushes during it are neither lost nor sent before the past, however often that happens."""
    user, replay = new_id(), QueryHub._replay
    first, place = await ends.completed(user, "0")
    runs = [(await ends.completed(user, "1"))[0]]

    async def replay_slowly(hub: QueryHub, subscriber: Any, start: int, end: int) -> None:
        await replay(hub, subscriber, start, end)
        if len(runs) < 4:
            run, at = await ends.completed(user, str(len(runs)))
            runs.append(run)
            await eventually(_is(lambda: hub._places[at.partition] > at.offset), "the live end has passed it")

    monkeypatch.setattr(QueryHub, "_replay", replay_slowly)
    async with socket(api, f"user_id={user}&after={place}") as connection:
        assert [(await published(connection))["request_id"] for _ in range(4)] == runs
        runs.append((await ends.completed(user, "live"))[0])
        assert (await published(connection))["request_id"] == runs[4]
        assert await is_silent(connection)
    assert first not in runs


async def test_what_the_relay_published_twice_is_told_once(api, ends):
    """Live and of the past."""
    user = new_id()
    async with socket(api, f"user_id={user}") as connection:
        start, place = await ends.completed(user)
        await ends.published(start, user, "COMPLETED")
        assert (await published(connection))["request_id"] == start
        run, _ = await ends.completed(user)
        await ends.published(run, user, "COMPLETED")
        assert (await published(connection))["request_id"] == run
        assert await is_silent(connection)
    before = Position(place.topic, place.partition, place.offset + 1)
    async with socket(api, f"user_id={user}&after={before}") as connection:
        assert (await published(connection))["request_id"] == run
        assert await is_silent(connection)


async def test_an_id_that_cannot_be_resumed_from(api, ends):
    """4400 for one that is malformed, of another topic or user, or past the end."""
    user = new_id()
    _, place = await ends.completed(user)
    partition = partition_of(user)
    for after in ("x", "", "queries.run-failed/0/0", f"{STAGE_TOPIC}/{(partition + 1) % 8}/0", f"{STAGE_TOPIC}/99/0"):
        assert await closed(api, f"user_id={user}&after={after}") == 4400
    beyond = f"{STAGE_TOPIC}/{partition}/{place.offset + 1_000_000}"
    assert await closed(api, f"user_id={user}&after={beyond}") == 4400
    for after in (beyond, 7, None):
        assert await closed(api, f"user_id={user}", first={"type": "resume", "after": after}) == 4400
    async with socket(api, f"user_id={user}") as connection:
        await says(connection, {"type": "ping"})
        late = await says(connection, {"type": "resume", "after": str(place)})
        assert late["type"] == "error"


async def test_a_gap_is_told(stack, api, ends):
    """Removed records of the log are reported as gone; then come the available ones."""
    user = new_id()
    await ends.completed(user, "gone")
    _, place = await ends.completed(user, "gone too")
    run, held = await ends.completed(user, "kept")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    cut = TopicPartition(STAGE_TOPIC, place.partition, held.offset)
    for future in admin.delete_records([cut]).values():
        await asyncio.to_thread(future.result, 10)
    async with socket(api, f"user_id={user}&after={STAGE_TOPIC}/{place.partition}/0") as connection:
        gap = {"type": "gap", "id": f"{STAGE_TOPIC}/{place.partition}/{held.offset - 1}"}
        assert await published(connection) == gap
        assert (await published(connection))["request_id"] == run


# -- commands and bounds --------------------------------------------------------------------------------------------------


async def test_commands(api, seeds, ends):
    """Cancelling is an event; any other message is answered, and the socket stays."""
    user = new_id()
    mine, other = await store_run(seeds, user), await store_run(seeds, new_id())
    async with socket(api, f"user_id={user}") as connection:
        reply = await says(connection, {"type": "cancel", "request_id": mine.upper()})
        assert (reply["type"], reply["request_id"]) == ("cancelling", mine)
        assert reply["positions"][0].startswith("queries.run-controlled/")
        for wrong in (
            {"type": "cancel", "request_id": other},
            {"type": "cancel", "request_id": "x"},
            {"type": "cancel", "request_id": None},
            {"type": "cancel"},
            {"type": "dance"},
            {},
            [],
            "{",
            b"\xff",
            "7",
        ):
            assert (await says(connection, wrong))["type"] == "error", wrong
        run, _ = await ends.completed(user)
        assert (await published(connection))["request_id"] == run


async def test_a_message_that_is_too_large_ends_the_socket(api):
    """1009 above 64 KiB; below it is answered."""
    async with socket(api, f"user_id={ADA}") as connection:
        assert (await says(connection, "x" * 65_000))["type"] == "error"
    assert await closed(api, f"user_id={ADA}", first="x" * 66_000) == 1009


async def test_too_many_sockets(api, monkeypatch):
    """1013 for one above the bound; it may come when another has gone."""
    wait_until(lambda: api.app.state.queries.sockets.audience.count == 0, "all have gone")
    monkeypatch.setattr(api.app.state.queries.sockets.audience, "_count_max", 1)
    async with socket(api, f"user_id={ADA}") as connection:
        await says(connection, {"type": "ping"})
        assert await closed(api, f"user_id={ADA}") == 1013
    wait_until(lambda: api.app.state.queries.sockets.audience.count == 0, "it has gone")
    async with socket(api, f"user_id={ADA}") as connection:
        assert (await says(connection, {"type": "ping"}))["type"] == "pong"


async def test_a_slow_reader_is_sent_away_and_resumes(api, ends, seeds, stack, codec, monkeypatch):
    """1013 once its backlog is too large; with its last id it gets the rest."""
    monkeypatch.setattr(query_stream, "WAITING_MAX", 4)
    user, count = new_id(), 60
    async with socket(api, f"user_id={user}", max_queue=1, compression=None) as connection:
        runs = []
        for _ in range(count):
            runs.append(await store_run(seeds, user))
            await complete(seeds, runs[-1], "x" * 500_000)
        events = [stage_event(run, user, "COMPLETED") for run in runs]
        await asyncio.to_thread(publish, stack.kafka, codec, STAGE_TOPIC, *events)
        hub = api.app.state.queries.sockets
        (subscriber,) = hub._users[user.encode()]
        await eventually(_is(subscriber.closed.done), "it is sent away")
        messages = [json.loads(text) async for text in _until_closed(connection)]
        assert connection.close_code == 1013
    seen, last = [message["request_id"] for message in messages], messages[-1]["id"]
    assert 0 < len(seen) < count
    async with socket(api, f"user_id={user}&after={last}") as connection:
        rest = [(await published(connection))["request_id"] for _ in runs[len(seen) :]]
    assert seen + rest == runs


async def _until_closed(connection: ClientConnection) -> AsyncIterator[str | bytes]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            yield await asyncio.wait_for(connection.recv(), 15)


def _is(fact: Any) -> Any:
    async def look() -> bool:
        return bool(fact())

    return look


# -- parts that go away ---------------------------------------------------------------------------------------------------


async def test_with_postgresql_away_pushes_wait(own_settings, stack, seeds, codec):
    """The socket stays, and runs that ended meanwhile are sent when the answers can be read; also to a socket that connected
    meanwhile.
    """
    user = new_id()
    with running_api(own_settings()) as api:
        ends = Ends(stack, seeds, codec)
        run = await store_run(seeds, user)
        await complete(seeds, run, "late")
        async with socket(api, f"user_id={user}") as connection:
            await asyncio.to_thread(stack.local.stop_part, "database")
            try:
                await ends.published(run, user, "COMPLETED")
                await asyncio.sleep(SILENCE_SECONDS)
                async with socket(api, f"user_id={user}") as newcomer:
                    assert await is_silent(connection)
                    await asyncio.to_thread(stack.local.start_part, "database")
                    assert [(await published(one))["answer"] for one in (connection, newcomer)] == ["late", "late"]
            finally:
                if not stack.local.process("database").is_alive():
                    await asyncio.to_thread(stack.local.start_part, "database")
                await allow_restarted(stack.database)


async def test_with_kafka_away_pushes_follow(own_settings, stack, seeds, codec):
    """The socket stays over a restart of the broker and gets the runs that ended afterwards."""
    user = new_id()
    with running_api(own_settings()) as api:
        ends = Ends(stack, seeds, codec)
        async with socket(api, f"user_id={user}") as connection:
            run, _ = await ends.completed(user)
            assert (await published(connection))["request_id"] == run
            await asyncio.to_thread(stack.local.stop_part, "kafka")
            try:
                assert await is_silent(connection)
                kafka = api.app.state.services.kafka
                await eventually(_is(lambda: not kafka.ready), "the API has noticed")
                assert (await says(connection, {"type": "cancel", "request_id": run}))["type"] == "error"
            finally:
                await asyncio.to_thread(stack.local.start_part, "kafka")
            runs = [(await ends.completed(user))[0] for _ in range(3)]
            assert [(await published(connection, 60))["request_id"] for _ in runs] == runs


async def test_a_server_that_stops_says_so(own_settings):
    """1001, and the server does not wait for sockets."""
    with running_api(own_settings()) as api:
        async with socket(api, f"user_id={ADA}") as connection:
            await says(connection, {"type": "ping"})
            api.stop()
            with pytest.raises(ConnectionClosed) as ending:
                await published(connection)
            assert ending.value.rcvd is not None
            assert ending.value.rcvd.code == 1001
        await asyncio.to_thread(api.thread.join, 8)
        assert not api.thread.is_alive()
