"""A match composed of two documents: its ETag, its number, and what happens when the live part is removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from highwater.api.league.matches import DROPPED_MAX, MatchDocuments, cause_of_both
from highwater.connectors.pages.reads import DocumentPendingError, NoSuchDocumentError, Served
from highwater.connectors.redis.resource_cache import Head
from highwater.streams.pages.kinds import CacheOptions, Resource
from highwater.streams.pages.refresh import Freshness

META, LIVE = "md:m:meta", "md:m:live"


class _Documents:
    """Documents by key; a missing one is an error, and an error is raised."""

    def __init__(self) -> None:
        self.held: dict[str, Served | Exception] = {META: _served(5), LIVE: _served(8, "league.vote-cast/0/3")}
        self.overtaken: set[str] = set()
        self.asked: list[str] = []
        self.at_once = 0
        self._under_way = 0

    async def read(self, found: Resource, *, is_positioned: bool = False) -> Served:
        self.asked.append(found.key)
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        held = self.held.get(found.key, NoSuchDocumentError())
        if isinstance(held, Exception):
            raise held
        return held

    async def payload(self, found: Resource, head: Head, encoding: str) -> bytes | None:
        return None if found.key in self.overtaken else b'{"v":%d}' % head.version


class _Pool:
    """The last version of the live part, as PostgreSQL remembers it."""

    version: int | None = 8

    @asynccontextmanager
    async def acquire(self, **_: Any) -> AsyncIterator[_Pool]:
        yield self

    async def fetch(self, *_: Any, **__: Any) -> list[tuple[int]]:
        return [] if self.version is None else [(self.version,)]


def _served(
    version: int, cause: str = "", freshness: Freshness = Freshness.FRESH, age: int = 1, left: int = 9
) -> Served:
    return Served(Head(version, f"md-{version}", cause, 0), freshness, CacheOptions(4, 16, 10), age, left)


@pytest.fixture
def documents() -> _Documents:
    """A match of both parts."""
    return _Documents()


@pytest.fixture
def matches(documents: _Documents) -> MatchDocuments:
    """The reader of it."""
    return MatchDocuments(documents, _Pool)  # type: ignore[arg-type, return-value]


async def test_the_tag_names_both_versions_and_the_number_is_their_sum(documents, matches) -> None:
    """Both heads are requested at once; the body is of exactly these versions."""
    parts = await matches.read("m")
    head = parts.served.head
    assert (head.etag, head.version, head.caused_by) == ("md-5+md-8", 13, "league.vote-cast/0/3")
    assert (sorted(documents.asked), documents.at_once) == ([LIVE, META], 2)
    assert await matches.payload(parts) == b'{"meta":{"v":5},"live":{"v":8}}'


@pytest.mark.parametrize("key", [META, LIVE])
async def test_a_part_that_was_overtaken_makes_no_body(documents, matches, key: str) -> None:
    """None: the heads have to be read again."""
    parts = await matches.read("m")
    documents.overtaken.add(key)
    assert await matches.payload(parts) is None


async def test_it_is_as_good_as_the_worse_of_the_two(documents, matches) -> None:
    """Staler, older, and for the shorter time."""
    documents.held[META] = _served(5, "league.match-scheduled/0/1", Freshness.KEPT, age=7, left=90)
    documents.held[LIVE] = _served(8, "", Freshness.STALE, age=2, left=3)
    served = (await matches.read("m")).served
    assert (served.freshness, served.age_seconds, served.stale_left_seconds) == (Freshness.KEPT, 7, 3)
    assert served.head.caused_by == "league.match-scheduled/0/1"


async def test_without_its_live_part_it_stays_and_its_number_does_not_fall(documents, matches) -> None:
    """`live` is null with its own ETag, and the number rises by one; from then on only one part is requested."""
    before = (await matches.read("m")).served.head
    del documents.held[LIVE]
    parts = await matches.read("m")
    assert parts.served.head.version == before.version + 1
    assert parts.served.head.etag != before.etag
    assert await matches.payload(parts) == b'{"meta":{"v":5},"live":null}'
    documents.asked.clear()
    assert (await matches.read("m")).served == parts.served
    assert documents.asked == [META]


async def test_a_correction_brings_the_live_part_back(documents, matches) -> None:
    """A new version of the other part, or a read with a position, makes both be requested again."""
    live = documents.held.pop(LIVE)
    gone = (await matches.read("m")).served.head
    documents.held[LIVE] = live
    assert (await matches.read("m", is_positioned=True)).live is not None
    assert (await matches.read("m")).live is None
    documents.held[META], documents.held[LIVE] = _served(6), _served(9)
    back = await matches.read("m")
    assert back.live is not None
    assert back.served.head.version > gone.version


async def test_a_match_that_never_had_a_live_part_has_a_number(matches, documents) -> None:
    """It was never requested while it existed."""
    del documents.held[LIVE]
    matches._pool = type("Empty", (_Pool,), {"version": None})
    assert (await matches.read("m")).served.head.version == 6


@pytest.mark.parametrize(
    ("meta", "live", "expected"),
    [
        (NoSuchDocumentError(), NoSuchDocumentError(), NoSuchDocumentError),
        (NoSuchDocumentError(), DocumentPendingError(), NoSuchDocumentError),
        (DocumentPendingError(), _served(8), DocumentPendingError),
        (_served(5), DocumentPendingError(), DocumentPendingError),
    ],
)
async def test_what_is_not_there_or_not_yet_is_said(documents, matches, meta: Any, live: Any, expected: Any) -> None:
    """A missing match is 404 with any live part; the reader waits for a part that is being built."""
    documents.held = {META: meta, LIVE: live}
    with pytest.raises(expected):
        await matches.read("m")


async def test_matches_without_a_live_part_are_remembered_up_to_a_limit(documents, matches) -> None:
    """Old matches do not fill the memory."""
    for number in range(DROPPED_MAX + 5):
        documents.held[f"md:{number}:meta"] = _served(1)
        await matches.read(str(number))
    assert len(matches._dropped) == DROPPED_MAX


@pytest.mark.parametrize(
    ("meta_ms", "live_ms", "cause"),
    [(2, 1, "league.match-scheduled/0/9"), (1, 2, "league.match-updated/0/3"), (2, 2, "league.match-updated/0/3")],
)
def test_the_event_behind_the_whole_is_that_of_the_newer_part(meta_ms: int, live_ms: int, cause: str) -> None:
    """A new date changes what does not move alone: the answer names that event, not the goal before it."""
    meta = Head(2, "meta", "league.match-scheduled/0/9", 10, changed_ms=meta_ms)
    live = Head(1, "live", "league.match-updated/0/3", 10, changed_ms=live_ms)
    assert cause_of_both(meta, live) == cause


def test_a_part_without_an_event_leaves_it_to_the_other() -> None:
    """Also where the part without one is the newer."""
    meta, live = Head(2, "meta", "", 10, changed_ms=3), Head(1, "live", "league.match-updated/0/3", 10, changed_ms=2)
    assert cause_of_both(meta, live) == "league.match-updated/0/3"
