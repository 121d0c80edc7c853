"""Public links of decks: the reader of one reads one deck without a key, until the link is revoked.

Invariants. The token is only in the link: PostgreSQL has its hash, so no backup and no list contains a working link. A
revoked link is deleted, so it cannot be distinguished from one that never existed. The links of a deck end with it.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import asyncpg

from highwater.connectors.identity.sessions import token_hash
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.postgres.pool import fetched, transaction
from highwater.streams.clock import to_datetime, to_ms

PREFIX = "hwp_"
_TOKEN_BYTES = 32  # as of a session: cannot be guessed and do not collide
# One for each group of readers, so that it can be revoked alone; the list of a deck's links is one short answer.
LINKS_MAX = 50


class Link(NamedTuple):
    """A link of a deck, without its token."""

    link_id: str
    created_ms: int


class SharedDeck(NamedTuple):
    """The deck of a link; `slides` is JSON as stored, `view_count` the stored part of its views."""

    presentation_id: str
    title: str
    slides: str
    view_count: int


async def create(pool: asyncpg.Pool[asyncpg.Record], presentation_id: str, now_ms: int) -> tuple[str, Link] | None:
    """Create a link of a deck; return its token, which cannot be read again; None: the deck has `LINKS_MAX` links.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    token = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    arguments = (presentation_id, token_hash(token), to_datetime(now_ms), LINKS_MAX)
    async with transaction(pool) as tx:
        row = await tx.fetchrow(QUERIES["add_presentation_link"], *arguments)
    return None if row is None else (token, Link(row["link_id"], now_ms))


async def links_of(pool: asyncpg.Pool[asyncpg.Record], presentation_id: str) -> list[Link]:
    """Return the links of a deck, the oldest first.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["presentation_links_read"], presentation_id)
    return [Link(row["link_id"], to_ms(row["created_at"])) for row in rows]


async def revoke(pool: asyncpg.Pool[asyncpg.Record], presentation_id: str, link_id: str) -> bool:
    """Delete a link of a deck; return whether the deck had it.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with transaction(pool) as tx:
        return await tx.fetchrow(QUERIES["delete_presentation_link"], link_id, presentation_id) is not None


async def shared_deck(pool: asyncpg.Pool[asyncpg.Record], token: str) -> SharedDeck | None:
    """Return the deck of a link; None: the link is unknown or revoked.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["shared_presentation_read"], token_hash(token))
    return SharedDeck(**dict(rows[0])) if rows else None
