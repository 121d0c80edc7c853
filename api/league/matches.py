"""A match as one page: its fixed and its live part, composed of exactly two document versions.

Invariants. The ETag names both versions, so that it never names two bodies; the version number is their sum, which
grows with either. After the live part was deleted (R4.17) its last version still counts, plus one for its absence: the
number never falls.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import asyncpg

from highwater.connectors.league.read_model import version_of
from highwater.connectors.pages.copies import IDENTITY
from highwater.connectors.pages.reads import Documents, NoSuchDocumentError, Served
from highwater.connectors.redis.resource_cache import Head
from highwater.streams.league.resources import resource
from highwater.streams.pages.kinds import Resource
from highwater.streams.pages.refresh import Freshness

# Matches without a live part that one process remembers, 200 bytes each: a season of several leagues. A forgotten one
# costs one attempt to build a document that does not exist.
DROPPED_MAX = 10_000


class MatchParts(NamedTuple):
    """The two parts and how they are served; `live` None: deleted."""

    served: Served
    meta: tuple[Resource, Head]
    live: tuple[Resource, Head] | None


class MatchDocuments:
    """Reads matches of two parts."""

    def __init__(self, documents: Documents, pool: Callable[[], asyncpg.Pool[asyncpg.Record]]) -> None:
        self._documents = documents
        self._pool = pool
        # Match -> the version of the other part at which the live one was found deleted, and its last version. Only a
        # result or another date restores it; both change the other part, so no invalidation is needed.
        self._dropped: OrderedDict[str, tuple[int, int]] = OrderedDict()

    async def read(self, match_id: str, *, is_positioned: bool = False) -> MatchParts:
        """Return both heads, requested in the same turn so that they are sent together; errors as of `Documents.read`."""
        meta, live = resource("match_meta", match_id), resource("match_live", match_id)
        dropped = None if is_positioned else self._dropped.get(match_id)
        if dropped is not None:
            served = await self._documents.read(meta)
            if served.head.version == dropped[0]:
                return _without_live(served, meta, dropped[1])
        of_meta, of_live = await asyncio.gather(
            self._documents.read(meta, is_positioned=is_positioned),
            self._documents.read(live, is_positioned=is_positioned),
            return_exceptions=True,
        )
        if isinstance(of_meta, BaseException):
            raise of_meta
        if isinstance(of_live, NoSuchDocumentError):
            last = await version_of(self._pool(), live.key)
            self._remember(match_id, of_meta.head.version, last)
            return _without_live(of_meta, meta, last)
        if isinstance(of_live, BaseException):
            raise of_live
        return _with_live(of_meta, meta, of_live, live)

    def quick(self, match_id: str) -> MatchParts | None:
        """Return the parts from memory; None if anything has to be queried."""
        meta, live = resource("match_meta", match_id), resource("match_live", match_id)
        of_meta = self._documents.quick(meta)
        if of_meta is None:
            return None
        dropped = self._dropped.get(match_id)
        if dropped is not None and dropped[0] == of_meta.head.version:
            return _without_live(of_meta, meta, dropped[1])
        of_live = self._documents.quick(live)
        return None if of_live is None else _with_live(of_meta, meta, of_live, live)

    async def near(self, match_id: str) -> MatchParts | None:
        """Return the parts with at most one query to Redis; None if that is not enough."""
        meta, live = resource("match_meta", match_id), resource("match_live", match_id)
        dropped = self._dropped.get(match_id)
        if dropped is not None:
            of_meta = await self._documents.near(meta)
            is_over = of_meta is not None and of_meta.head.version == dropped[0]
            return _without_live(of_meta, meta, dropped[1]) if of_meta is not None and is_over else None
        of_meta, of_live = await asyncio.gather(self._documents.near(meta), self._documents.near(live))
        return None if of_meta is None or of_live is None else _with_live(of_meta, meta, of_live, live)

    def body(self, parts: MatchParts) -> bytes | None:
        """Return the body from memory."""
        meta = self._documents.body(*parts.meta, IDENTITY)
        live = b"null" if parts.live is None else self._documents.body(*parts.live, IDENTITY)
        return _joined(meta, live)

    async def payload(self, parts: MatchParts) -> bytes | None:
        """Return the body of exactly these versions; None if one was overtaken."""
        meta = await self._documents.payload(*parts.meta, IDENTITY)
        live = b"null" if parts.live is None else await self._documents.payload(*parts.live, IDENTITY)
        return _joined(meta, live)

    def _remember(self, match_id: str, meta_version: int, live_version: int) -> None:
        self._dropped[match_id] = (meta_version, live_version)
        self._dropped.move_to_end(match_id)
        if len(self._dropped) > DROPPED_MAX:
            self._dropped.popitem(last=False)


def _joined(meta: bytes | None, live: bytes | None) -> bytes | None:
    return None if meta is None or live is None else b'{"meta":%b,"live":%b}' % (meta, live)


def _without_live(served: Served, meta: Resource, live_version: int) -> MatchParts:
    number = served.head.version + live_version + 1
    head = replace(served.head, version=number, etag=f"{served.head.etag}+{live_version}-over")
    return MatchParts(served._replace(head=head), (meta, served.head), None)


def cause_of_both(meta: Head, live: Head) -> str:
    """Return the event behind the whole match: that of the part that changed last. One event may have changed both."""
    newer, older = (meta, live) if (meta.changed_ms or 0) > (live.changed_ms or 0) else (live, meta)
    return newer.caused_by or older.caused_by


def _with_live(of_meta: Served, meta: Resource, of_live: Served, live: Resource) -> MatchParts:
    """Combine both parts: the worse freshness and the newer event of the two."""
    fresh_first = list(Freshness)
    versions = of_meta.head.version, of_live.head.version
    head = replace(
        of_live.head,
        version=sum(versions),
        etag=f"{of_meta.head.etag}+{of_live.head.etag}",
        caused_by=cause_of_both(of_meta.head, of_live.head),
    )
    served = of_live._replace(
        head=head,
        freshness=max(of_meta.freshness, of_live.freshness, key=fresh_first.index),
        age_seconds=max(of_meta.age_seconds, of_live.age_seconds),
        stale_left_seconds=min(of_meta.stale_left_seconds, of_live.stale_left_seconds),
    )
    return MatchParts(served, (meta, of_meta.head), (live, of_live.head))
