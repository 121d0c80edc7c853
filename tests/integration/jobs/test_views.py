"""Views of decks: counted at once in the key that is shown, stored once per window, with any crash in the middle of one."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from highwater.connectors.jobs.sink_views import ViewsSink
from highwater.connectors.jobs.views import ViewCounts
from highwater.connectors.kafka import consumer
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.redis.link import RedisLink, open_redis
from highwater.deploy.local.redis import Redis
from highwater.schemas.jobs import VIEW_RECORDED
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import configure_logging
from tests.conftest import Stack
from tests.integration.api_server import Api, Seeds, running_api
from tests.integration.children import SESSION_MS, child
from tests.integration.connecting import event, in_transaction, running, send, surroundings, until


@pytest.fixture
async def link(stack: Stack) -> AsyncIterator[RedisLink]:
    """The session's Redis."""
    opened = await open_redis(stack.redis)
    yield opened
    await opened.close()


@pytest.fixture
def deck() -> str:
    """A deck of the test's own."""
    return str(uuid.uuid4())


async def stored(context: ProcessContext, deck: str) -> int:
    """Its views in PostgreSQL."""
    query = "SELECT coalesce(sum(view_count), 0)::bigint FROM presentation_shares WHERE presentation_id = $1"
    return int(await context.pool.fetchval(query, deck))


def viewed(*decks: str) -> list[Any]:
    """Events of views."""
    return [event(VIEW_RECORDED, {"presentation_id": deck, "ts": 1}, offset=n) for n, deck in enumerate(decks)]


def publish(stack: Stack, context: ProcessContext, decks: Sequence[str]) -> None:
    """Publish views as an external producer does."""
    values = [(deck, context.codec.encode(VIEW_RECORDED, {"presentation_id": deck, "ts": 1})) for deck in decks]
    send(stack.kafka, VIEW_RECORDED, values)


def sink(link: RedisLink, window_seconds: float = 600.0) -> ViewsSink:
    """The sink with a window that does not end by itself, by default."""
    return ViewsSink(ViewCounts(link), window_seconds=window_seconds)


async def accounted(context: ProcessContext, link: RedisLink, wanted: Any) -> None:
    """Run the sink with short windows until something is stored."""
    async with running(BatchConsumer(sink(link, 0.1), context)):
        await until(wanted, "stored")


# -- stored and shown views ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R2.43")
async def test_a_window_is_one_row_a_deck(context: ProcessContext, link: RedisLink, deck: str) -> None:
    """Views of a batch are summed by deck and added to the stored number; a bad id is refused and does not affect others."""
    other = str(uuid.uuid4())
    dead = await in_transaction(context, sink(link), viewed(deck, other, deck, "not-a-uuid", deck))
    assert [letter.reason for letter in dead] == ["bad_uuid"]
    await in_transaction(context, sink(link), viewed(deck))
    assert (await stored(context, deck), await stored(context, other)) == (4, 1)


async def shown(link: RedisLink, deck: str) -> tuple[bytes | None, int]:
    """The number in Redis and its TTL."""
    name = f"presentation_view_count:{deck}"
    return await link.client.get(name), await link.client.ttl(name)


@pytest.mark.requirement("R2.42", "R2.43")
async def test_the_key_holds_the_number_of_views(context: ProcessContext, link: RedisLink, deck: str) -> None:
    """A string without a TTL: all views, before and after they are stored, and those that other producers sent."""
    views = ViewCounts(link)
    assert (await views.shown(deck, 0), await shown(link, deck)) == (0, (None, -2))
    for _ in range(5):
        assert await views.add(deck, 0)
    assert await link.client.type(f"presentation_view_count:{deck}") == b"string"
    assert await shown(link, deck) == (b"5", -1)
    await in_transaction(context, sink(link), viewed(deck, deck, deck))
    assert (await stored(context, deck), await shown(link, deck)) == (3, (b"5", -1))
    await in_transaction(context, sink(link), viewed(deck, deck))
    assert (await stored(context, deck), await shown(link, deck)) == (5, (b"5", -1))
    await in_transaction(context, sink(link), viewed(*[deck] * 842))
    assert (await stored(context, deck), await shown(link, deck)) == (847, (b"847", -1))
    await views.add(deck, 847)
    await views.cancel(deck)
    assert await shown(link, deck) == (b"847", -1)


@pytest.mark.requirement("R2.42", "R2.43")
async def test_a_key_that_redis_lost_is_refilled_from_postgresql(
    context: ProcessContext, link: RedisLink, deck: str
) -> None:
    """A FLUSHALL in a window: the next view, read or end of a window raises the key to what is stored, and none counts twice."""
    views, name = ViewCounts(link), f"presentation_view_count:{deck}"
    for _ in range(3):
        await views.add(deck, 0)
    await in_transaction(context, sink(link), viewed(deck, deck, deck))
    await link.client.delete(name)
    assert (await views.shown(deck, 3), await shown(link, deck)) == (3, (b"3", -1))
    await link.client.delete(name)
    await views.add(deck, 3)
    assert await shown(link, deck) == (b"4", -1)
    await link.client.delete(name)
    await in_transaction(context, sink(link), viewed(deck))
    assert (await stored(context, deck), await shown(link, deck)) == (4, (b"4", -1))
    await views.cancel(deck)
    assert await views.shown(deck, 4) == 4


async def test_without_redis_the_stored_number_is_shown(context: ProcessContext, deck: str) -> None:
    """A view is shown once it is stored; nothing fails."""
    away = RedisLink(None)
    assert not await ViewCounts(away).add(deck, 0)
    await in_transaction(context, sink(away), viewed(deck))
    assert (await stored(context, deck), await ViewCounts(away).shown(deck, 1)) == (1, 1)


async def test_batches_at_once_lose_nothing(context: ProcessContext, link: RedisLink) -> None:
    """Many consumers' batches over the same decks in different orders."""
    decks = [str(uuid.uuid4()) for _ in range(4)]
    batches = [viewed(*(decks if n % 2 else decks[::-1])) for n in range(12)]
    await asyncio.gather(*(in_transaction(context, sink(link), batch) for batch in batches))
    assert [await stored(context, deck) for deck in decks] == [12] * 4


# -- over the log, with processes that die -------------------------------------------------------------------------------


async def test_a_kill_in_a_window_loses_and_doubles_nothing(
    stack: Stack, context: ProcessContext, link: RedisLink, deck: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill -9 in the middle of a window: nothing of it was stored, and the next consumer stores all of it once."""
    monkeypatch.setattr(consumer, "SESSION_MS", SESSION_MS)
    with child(stack, "tests.integration.jobs.test_views", str(tmp_path), "gathering", folder=tmp_path) as process:
        publish(stack, context, [deck] * 40)
        await until((tmp_path / "gathering").exists, "a window has begun", 60)
        publish(stack, context, [deck] * 2)
        process.kill()
        process.wait()
    assert await stored(context, deck) == 0
    await accounted(context, link, lambda: is_stored(context, deck, 42))


async def test_a_kill_before_the_commit_loses_and_doubles_nothing(
    stack: Stack, context: ProcessContext, link: RedisLink, deck: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill -9 with the views written and not committed, and Redis updated: PostgreSQL has them once, and so has Redis."""
    monkeypatch.setattr(consumer, "SESSION_MS", SESSION_MS)
    for _ in range(30):
        await ViewCounts(link).add(deck, 0)
    with child(stack, "tests.integration.jobs.test_views", str(tmp_path), "applied", folder=tmp_path) as process:
        publish(stack, context, [deck] * 30)
        await until((tmp_path / "applied").exists, "it is written", 60)
        assert (await stored(context, deck), await shown(link, deck)) == (0, (b"30", -1))
        process.kill()
        process.wait()
    await accounted(context, link, lambda: is_stored(context, deck, 30))
    assert await shown(link, deck) == (b"30", -1)


async def is_stored(context: ProcessContext, deck: str, count: int) -> bool:
    """Whether this many views are stored; a higher number would never fall."""
    found = await stored(context, deck)
    assert found <= count
    return found == count


async def main(folder: Path, where: str) -> None:
    """Gather views; say so by a file when a window has begun, or has been written, and go no further."""
    names = ("KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "DATABASE_URL", "REDIS_URL")
    consumer.SESSION_MS = int(os.environ["SESSION_MS"])
    settings = read_settings({name: os.environ[name] for name in names})
    configure_logging("info", "json")
    link = await open_redis(settings.redis)
    made = sink(link, 600.0 if where == "gathering" else 1.0)
    async with surroundings(Stack(*(os.environ[name] for name in names), local=None)) as context:  # type: ignore[arg-type]
        member = BatchConsumer(made, context)
        gather, apply = member._gather, made.apply

        async def announced_gather(*arguments: Any) -> Any:
            if where == "gathering":
                (folder / where).touch()
            return await gather(*arguments)

        async def announced_apply(*arguments: Any) -> Any:
            dead = await apply(*arguments)
            if where == "applied":
                (folder / where).touch()
                await asyncio.Event().wait()
            return dead

        member._gather = announced_gather  # type: ignore[method-assign]
        made.apply = announced_apply  # type: ignore[method-assign]
        async with running(member):
            await asyncio.Event().wait()


# -- HTTP ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[Api]:
    """An API on the session's parts."""
    with running_api(stack.settings(HIGHWATER_API_KEYS="viewer:view-key")) as made:
        yield made


async def made_deck(stack: Stack) -> str:
    """A deck that has been made."""
    deck = str(uuid.uuid4())
    query = "INSERT INTO presentations VALUES ($1, 'o', 'u', 'A deck', '[]', 't/0/0', to_timestamp(0))"
    await Seeds(stack.database).run(query, deck)
    return deck


@pytest.mark.requirement("R2.42")
async def test_a_view_is_shown_at_once_and_stored_once(
    stack: Stack, api: Api, context: ProcessContext, link: RedisLink
) -> None:
    """202 with a position, at once and not a window later; shown before and after it is stored as the same number."""
    deck = await made_deck(stack)
    async with api.client("view-key") as client:
        answers = [await client.post(f"/api/presentations/{deck}/views") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202] * 3
        assert all(answer.json()["positions"][0].startswith(f"{VIEW_RECORDED}/") for answer in answers)
        assert (await client.get(f"/api/presentations/{deck}")).json()["view_count"] == 3
        await accounted(context, link, lambda: is_stored(context, deck, 3))
        assert (await client.get(f"/api/presentations/{deck}")).json()["view_count"] == 3
        assert await shown(link, deck) == (b"3", -1)
        await link.client.delete(f"presentation_view_count:{deck}")
        assert (await client.post(f"/api/presentations/{deck}/views")).status_code == 202
        assert await shown(link, deck) == (b"4", -1)
        unknown = await client.post(f"/api/presentations/{uuid.uuid4()}/views")
        malformed = await client.post("/api/presentations/deck/views")
    assert (unknown.status_code, malformed.status_code) == (404, 422)
    async with api.client() as client:
        assert (await client.post(f"/api/presentations/{deck}/views")).status_code == 401


@pytest.mark.requirement("R2.43")
async def test_a_killed_redis_is_refilled_from_postgresql(
    stack: Stack, context: ProcessContext, own_redis: Redis
) -> None:
    """Redis is killed with views that are not stored: what PostgreSQL holds is shown, all views are stored, and the Redis that
    starts empty gets their number, as often as before.
    """
    deck, link = await made_deck(stack), await open_redis(own_redis.address)
    with running_api(stack.settings(REDIS_URL=own_redis.address)) as api:
        async with api.client() as client:

            async def count() -> int:
                return int((await client.get(f"/api/presentations/{deck}")).json()["view_count"])

            for _ in range(3):
                assert (await client.post(f"/api/presentations/{deck}/views")).status_code == 202
            assert await count() == 3
            own_redis.process.kill()
            assert await count() == 0
            assert (await client.post(f"/api/presentations/{deck}/views")).status_code == 202
            await accounted(context, link, lambda: is_stored(context, deck, 4))
            assert await count() == 4
            own_redis.process.start(own_redis.command())
            await until(link.probe, "Redis answers")
            await link.client.flushall()

            async def is_filled() -> bool:
                assert await count() == 4
                return await shown(link, deck) == (b"4", -1)

            await until(is_filled, "Redis has the number again")
            assert (await client.post(f"/api/presentations/{deck}/views")).status_code == 202
            assert await count() == 5
    await link.close()


async def test_an_open_api_takes_views_of_anybody(stack: Stack) -> None:
    """Without keys no caller is identified, and no limit is shown."""
    deck = await made_deck(stack)
    await Seeds(stack.database).run(
        "DELETE FROM outbox"
    )  # of earlier tests without a relay: writes would be refused for its age
    with running_api(stack.settings()) as made:
        async with made.client() as client:
            answer = await client.post(f"/api/presentations/{deck}/views")
    assert (answer.status_code, answer.headers.get("ratelimit")) == (202, None)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
