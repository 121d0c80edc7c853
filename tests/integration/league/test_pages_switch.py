"""One event shows on all pages that it alters, or on none, whichever of them is made first and why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from highwater.api.league.matches import MatchDocuments
from highwater.connectors.league.documents import builders
from highwater.connectors.pages import changes
from highwater.connectors.pages.copies import IDENTITY, Copies
from highwater.connectors.pages.leases import CopyLease
from highwater.connectors.pages.maker import DocumentMaker
from highwater.connectors.pages.reads import Documents, NoSuchDocumentError
from highwater.connectors.pages.regeneration import RegenerationLocks
from highwater.connectors.redis.keys import DOCUMENT
from highwater.connectors.redis.link import RedisLink
from highwater.connectors.redis.resource_cache import ResourceCache
from highwater.streams.clock import fresh_id
from highwater.streams.league.resources import LEAGUE_RULES, resource, resource_of
from highwater.streams.league.windows import WindowOptions
from highwater.streams.pages.kinds import Resource
from tests.integration.connecting import until
from tests.integration.databases import address_of, own_database
from tests.integration.league.making import KICKOFF_MS, League

HOME, AWAY = "Home United", "Away City"
NOW_MS = KICKOFF_MS + 3_600_000


class World(League):
    """A season of two matches whose pages were read, in a process with copies under a lease. No materializer runs."""

    def __init__(self, context: Any, url: str, link: RedisLink) -> None:
        super().__init__(context)
        self.now_ms = NOW_MS
        cache, copies = ResourceCache(link, DOCUMENT), Copies()
        self.builders = dict(builders(WindowOptions()))
        maker = DocumentMaker(LEAGUE_RULES, self.builders, lambda: context.codec, cache, lambda: self.now_ms)
        self.documents = Documents(
            maker, pool=lambda: context.pool, cache=cache, copies=copies, lease=CopyLease(url, copies, fresh_id()),
            locks=RegenerationLocks(link), clock=lambda: self.now_ms,
        )  # fmt: skip
        self.matches = MatchDocuments(self.documents, lambda: context.pool)
        self.pages = [
            *(resource(f"league_{name}", self.season) for name in ("table", "schedule", "results", "stats", "bracket")),
            resource("league_stats_live", self.season), resource("matches_live"), resource("admin_stats"),
            resource("match_meta", self.match("1")), resource("match_live", self.match("1")),
            resource("club_matches", HOME), resource("club_matches", AWAY),
            *(resource("predictions_active", days) for days in ("6", "10")),
        ]  # fmt: skip

    async def read(self, page: Resource, *, is_positioned: bool = False) -> bytes:
        """A page as a reader gets it."""
        while True:
            served = await self.documents.read(page, is_positioned=is_positioned)
            body = await self.documents.payload(page, served.head, IDENTITY)
            if body is not None:
                return body

    async def shown(self) -> dict[str, bytes]:
        """Every page as a plain reader gets it."""
        return {page.key: await self.read(page) for page in self.pages}

    async def fresh(self) -> dict[str, bytes]:
        """Every page as it follows from the facts."""
        async with self.context.pool.acquire() as tx:
            made = {page.key: await self.builders[page.kind.name](tx, page.id, self.now_ms) for page in self.pages}
        return {key: built.payload for key, built in made.items() if built is not None}

    async def ends(self) -> None:
        """The match ends."""
        await self.stores(self.finalized("1", 3, 1))

    async def is_settled(self) -> None:
        """The readers have rebuilt the changed pages."""
        assert await self.context.pool.fetchval("SELECT count(*) FROM page_changes") == 0


@pytest.fixture
async def world(stack, link: RedisLink) -> AsyncIterator[World]:
    """All pages read, and served from memory; a match is in play."""
    async with own_database(stack) as context:
        world = World(context, await address_of(stack, context), link)
        clubs = {"home": HOME, "away": AWAY}
        later = {"kickoff": NOW_MS + 86_400_000, "home": AWAY, "away": HOME}
        await world.stores(world.scheduled("1", **clubs), world.scheduled("2", **later))
        await world.stores(world.updated("1", 1, 1, minute=60))
        world.documents.start()
        await world.shown()

        async def is_in_memory() -> bool:
            await world.shown()
            return all(world.documents.quick(page) is not None for page in world.pages)

        await until(is_in_memory, "the pages are served from memory")
        yield world
        await world.documents.close()


async def test_a_read_with_a_position_takes_the_other_pages_with_it(world: World) -> None:
    """Whichever page is read with the position of a result: from then on no plain read of any page shows the state before it."""
    for goals, page in enumerate(world.pages, start=3):
        before = await world.shown()
        await world.stores(world.finalized("1", goals, 1))
        assert await world.shown() == before
        after = await world.fresh()
        assert await world.read(page, is_positioned=True) == after[page.key]
        shown = await world.shown()
        assert shown == after
        assert orjson.loads(shown[f"league:table:{world.season}"])["table"][0]["goals_for"] == goals
        await world.is_settled()


async def test_a_page_made_for_its_age_or_for_its_first_reader_takes_the_others_with_it(world: World) -> None:
    """An expiry, and a page without a reader before."""
    before = await world.shown()
    await world.ends()
    assert await world.shown() == before
    world.now_ms += 16_000  # past the life of results inside a window, within its stale life
    await world.documents.read(resource("league_results", world.season))

    async def is_made() -> bool:
        return await world.read(resource("league_results", world.season)) != before[f"league:results:{world.season}"]

    await until(is_made, "the results are made anew")
    assert await world.shown() == await world.fresh()
    await world.stores(world.finalized("1", 4, 1))
    await world.read(resource("match_meta", world.match("2")))
    assert await world.shown() == await world.fresh()
    await world.is_settled()


async def test_votes_show_on_a_match_and_among_the_predictions_at_once(world: World) -> None:
    """The siblings that need no decision: votes, comments and advertisements are noted by their sinks as well."""
    await world.stores(world.voted("2", "ada", "home", ts=1))
    days = resource("predictions_active", "6")
    assert orjson.loads(await world.read(days, is_positioned=True))["matches"][0]["votes"]["home"] == 1
    await world.read(resource("match_live", world.match("2")))
    await world.stores(world.voted("2", "bob", "home", ts=1))
    live = await world.read(resource("match_live", world.match("2")), is_positioned=True)
    assert orjson.loads(live)["votes"]["home"] == 2
    assert orjson.loads(await world.read(days))["matches"][0]["votes"]["home"] == 2
    await world.is_settled()


async def test_all_pages_of_a_making_are_of_one_moment(world: World) -> None:
    """A result that is stored while pages are made is on none of them; it stays noted and is on all with the next."""
    build, before = world.builders["league_schedule"], await world.shown()

    async def and_then_it_ends(tx: Any, about: str, now_ms: int) -> Any:
        world.builders["league_schedule"] = build
        built = await build(tx, about, now_ms)
        await world.ends()
        return built

    await world.stores(world.scheduled("2", home=AWAY, away=HOME, kickoff=NOW_MS + 2 * 86_400_000))
    of_moment = await world.fresh()
    world.builders["league_schedule"] = and_then_it_ends
    await world.read(resource("league_bracket", world.season), is_positioned=True)
    shown = await world.shown()
    assert shown == of_moment != before
    assert orjson.loads(shown[f"league:table:{world.season}"])["table"][0]["points"] == 0
    await world.read(resource("league_stats", world.season), is_positioned=True)
    assert await world.shown() == await world.fresh()
    await world.is_settled()


async def test_readers_with_positions_at_once_make_it_once(world: World) -> None:
    """Fourteen readers of fourteen pages, none of whom waits for another forever; each page takes one version."""
    await world.ends()
    await asyncio.gather(*(world.read(page, is_positioned=True) for page in world.pages))
    rows = await world.context.pool.fetch("SELECT key, version FROM documents WHERE key LIKE 'league:%'")
    changed = {"table", "schedule", "results", "stats", "stats-live"}
    assert {row["version"] for row in rows if row["key"].split(":")[1] in changed} == {2}
    await world.is_settled()


async def test_what_nobody_reads_is_not_made(world: World) -> None:
    """A change notes pages without readers; none of them is built for it."""
    stored = "SELECT count(*) FROM documents"
    before = await world.context.pool.fetchval(stored)
    await world.stores(*(world.scheduled(f"new {number}") for number in range(20)))
    await world.read(world.pages[0], is_positioned=True)
    assert await world.context.pool.fetchval(stored) == before
    with pytest.raises(NoSuchDocumentError):
        await world.read(resource("club_matches", "nobody"))
    assert resource_of(world.pages[0].key) == world.pages[0]


async def test_notes_are_struck_off_as_far_as_they_were_seen(world: World) -> None:
    """A note of a transaction that commits later than the moment of a making stays for the next."""
    async with world.context.pool.acquire() as late, late.transaction():
        await changes.note_changes(late, [world.pages[0].key])
        await changes.note_changes(late, [world.pages[1].key])
        await world.ends()
        await world.read(world.pages[0], is_positioned=True)
        await world.is_settled()
    assert await world.context.pool.fetchval("SELECT count(*) FROM page_changes") == 2
