"""The materializer of documents: which documents a change builds, and which it removes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from highwater.connectors.kafka.records import Event
from highwater.connectors.pages.forms import pages_of_former_forms
from highwater.connectors.pages.maker import DocumentMaker
from highwater.connectors.pages.refreshes import RELATIVES_MADE_MAX, Refreshes
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.redis.keys import DOCUMENT, RESOURCE_VERSION, resource_key
from highwater.connectors.redis.link import RedisLink
from highwater.connectors.redis.resource_cache import ResourceCache
from highwater.schemas.cache import INVALIDATION_REQUESTED, PREWARM_REQUESTED
from highwater.schemas.league import REFRESH_REQUESTED
from highwater.streams.league.resources import KINDS, LEAGUE_RULES, resource
from highwater.streams.pages.kinds import Resource
from tests.integration.connecting import event
from tests.integration.databases import own_database

NOW = 1_790_000_000_000


class Built(NamedTuple):
    """A document of these tests."""

    payload: bytes
    caused_by: str


class World:
    """A database, a Redis number, and builders that give what `facts` says, or nothing."""

    def __init__(self, context: Any, link: RedisLink) -> None:
        self.pool = context.pool
        self.link = link
        self.facts: dict[str, str] = {}
        cache = ResourceCache(link, DOCUMENT)
        made = {kind.name: self._builder(kind.name) for kind in KINDS.values()}
        self.maker = DocumentMaker(LEAGUE_RULES, made, lambda: context.codec, cache, lambda: NOW)
        self.handler = Refreshes(self.maker, self.pool)

    def _builder(self, kind: str) -> Any:
        async def build(tx: Any, about: str, now_ms: int) -> Built | None:
            if kind == "match_window":
                return Built(b'{"windows":{}}', "")
            text = self.facts.get(resource(kind, about).key)
            return None if text is None else Built(text.encode(), "")

        return build

    async def takes(self, *events: Event) -> list[str]:
        """Handle a batch; return the reasons of the dead letters."""
        prepared = await self.handler.prepare(events)
        async with transaction(self.pool) as tx:
            dead = await self.handler.apply(tx, events, prepared)
        await self.handler.settle(prepared)
        return [letter.reason for letter in dead]

    async def stored(self) -> dict[str, tuple[int, str]]:
        """Key -> version and text."""
        rows = await self.pool.fetch("SELECT key, version, payload FROM documents")
        return {row["key"]: (row["version"], row["payload"].decode()) for row in rows}

    async def former(self) -> list[str]:
        """Keys of the pages that are requested at the start, since they have a former form."""
        async with transaction(self.pool) as tx:
            return [page.key for page in await pages_of_former_forms(tx, LEAGUE_RULES)]

    async def has_been_read(self, *found: Resource) -> None:
        """Mark these documents as read."""
        for one in found:
            self.facts.setdefault(one.key, "first")
            await self.takes(event(INVALIDATION_REQUESTED, {"key": one.key, "requested_at": NOW}))


@pytest.fixture
async def world(stack, link: RedisLink) -> AsyncIterator[World]:
    """Empty."""
    async with own_database(stack) as context:
        yield World(context, link)


def refresh(*keys: str, dropped: tuple[str, ...] = ()) -> Event:
    """A request."""
    value = {"scope": "s", "keys": list(keys), "dropped": list(dropped), "reason": "test", "planned_at": NOW}
    found: Event = event(REFRESH_REQUESTED, value)
    return found


TABLE, ADS = resource("league_table", "s"), resource("ads")


async def test_what_nobody_asked_for_is_not_made(world: World) -> None:
    """A change rebuilds existing documents; the others are built for their first reader."""
    await world.has_been_read(ADS)
    world.facts |= {TABLE.key: "table", ADS.key: "second"}
    assert await world.takes(refresh(TABLE.key, ADS.key)) == []
    assert await world.stored() == {ADS.key: (2, "second")}
    await world.takes(refresh(ADS.key))
    assert await world.stored() == {ADS.key: (2, "second")}


async def test_a_prewarm_makes_the_pages_of_a_season(world: World) -> None:
    """With any readers before; an equal result bumps nothing; a missing season builds nothing."""
    pages = [resource(kind, "s").key for kind in ("league_results", "league_schedule", "league_stats", "league_table")]
    world.facts |= dict.fromkeys(pages, "x")
    for _ in range(2):
        for season in ("s", "none"):
            await world.takes(event(PREWARM_REQUESTED, {"season": season, "reason": "endpoint", "requested_at": NOW}))
        assert await world.stored() == dict.fromkeys(pages, (1, "x"))


@pytest.mark.requirement("R4.7")
async def test_an_invalidation_bumps_whatever_the_bytes_are(world: World) -> None:
    """The same bytes under the next version."""
    await world.has_been_read(ADS)
    await world.takes(event(INVALIDATION_REQUESTED, {"key": ADS.key, "requested_at": NOW}))
    assert await world.stored() == {ADS.key: (2, "first")}


async def test_a_dropped_document_ends_and_comes_back_under_a_later_version(world: World) -> None:
    """Also in Redis; of a document dropped and wanted in one batch the later request counts."""
    live = resource("match_live", "m")
    await world.has_been_read(live)
    await world.takes(refresh(dropped=(live.key,)))
    assert await world.stored() == {}
    assert await world.link.client.exists(live.key) == 0
    await world.has_been_read(live)
    assert await world.stored() == {live.key: (2, "first")}
    world.facts[live.key] = "second"
    await world.takes(refresh(dropped=(live.key,)), refresh(live.key))
    assert await world.stored() == {live.key: (3, "second")}


async def test_the_relatives_of_a_document_are_made_with_it(world: World) -> None:
    """Predictions of other ranges are as old as the one that is wanted; one that comes out the same keeps its version."""
    await world.has_been_read(*(resource("predictions_active", days) for days in ("6", "10", "30")), ADS)
    world.facts |= {"predictions:active:6d": "second", "predictions:active:10d": "second", ADS.key: "second"}
    await world.takes(refresh("predictions:active:6d"))
    assert await world.stored() == {
        "ads:all": (1, "first"),
        "predictions:active:6d": (2, "second"),
        "predictions:active:10d": (2, "second"),
        "predictions:active:30d": (1, "first"),
    }


async def test_of_many_relatives_the_rest_is_taken_away(world: World) -> None:
    """Pages of the rating that anybody ever turned to are not all made on a change."""
    pages = [resource("leaderboard", str(number)) for number in range(1, RELATIVES_MADE_MAX + 12)]
    await world.has_been_read(*pages)
    world.facts |= {page.key: "second" for page in pages}
    await world.takes(refresh("lb:1"))
    stored = await world.stored()
    assert len(stored) == RELATIVES_MADE_MAX + 1
    assert set(stored.values()) == {(2, "second")}
    assert "lb:1" in stored


async def test_what_went_with_its_user_goes_from_redis(world: World) -> None:
    """An erasure took the row already; its payload must not outlive it."""
    own = resource("predictions_user", "ada")
    await world.has_been_read(own)
    world.facts[own.key] = "second"
    await world.takes(refresh(own.key))
    assert await world.link.client.exists(own.key) == 1
    await world.pool.execute("DELETE FROM documents WHERE key = $1", own.key)
    await world.takes(refresh(dropped=(own.key,)))
    assert await world.link.client.exists(own.key, resource_key(RESOURCE_VERSION, own.key, is_cluster=False)) == 0


@pytest.mark.parametrize("key", ["no such key", "predictions:legacy", "md:\0:meta"])
async def test_a_key_that_names_no_document_is_put_aside(world: World, key: str) -> None:
    """With its reason; what else is in the batch is done."""
    await world.has_been_read(ADS)
    world.facts[ADS.key] = "second"
    dead = await world.takes(
        refresh(key), refresh(ADS.key), event(INVALIDATION_REQUESTED, {"key": key, "requested_at": NOW})
    )
    assert dead == ["unknown_document", "unknown_document"]
    assert await world.stored() == {ADS.key: (2, "second")}


async def test_a_page_of_a_former_form_is_found_until_it_is_built_in_the_present_one(world: World) -> None:
    """Also one whose next version an earlier release builds, which knows of no form; other bytes are another version."""
    await world.has_been_read(TABLE, ADS)
    assert await world.former() == []
    for earlier in (
        "UPDATE documents SET form = 0",
        "UPDATE documents SET form_at = version - 1",
    ):
        await world.pool.execute(earlier)
        assert await world.former() == [TABLE.key]
        await world.takes(refresh(TABLE.key))
        assert (await world.former(), await world.stored()) == ([], {ADS.key: (1, "first"), TABLE.key: (1, "first")})
    await world.pool.execute("UPDATE documents SET form = 0")
    world.facts[TABLE.key] = "in another form"
    await world.takes(refresh(TABLE.key))
    assert (await world.former(), (await world.stored())[TABLE.key]) == ([], (2, "in another form"))
