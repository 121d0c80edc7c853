"""Rows of documents: the last build of each key, with its version, ETag and cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, fetched, reading
from highwater.connectors.redis.resource_cache import Head
from highwater.streams.clock import to_datetime, to_ms


class Document(NamedTuple):
    """A stored document."""

    head: Head
    payload: bytes


async def lock(tx: Connection, key: str) -> None:
    """Lock a document for building until the transaction ends."""
    await tx.execute(QUERIES["lock_document"], LockClass.DOCUMENT, key)


async def stored(tx: Connection, key: str, now_ms: int) -> Document | None:
    """Return a stored document; None if there is none. `now_ms` is from before the read: its head was valid then."""
    row = await tx.fetchrow(QUERIES["document"], key)
    return None if row is None else Document(_head(row, now_ms), row["payload"])


async def put(tx: Connection, key: str, version: int, payload: bytes, built_ms: int, *, form: int) -> None:
    """Store a document with a version that was created in the same transaction."""
    await tx.execute(QUERIES["put_document"], key, version, payload, to_datetime(built_ms), form)


async def touch(tx: Connection, key: str, built_ms: int, *, form: int) -> None:
    """Note that a document was rebuilt with the same bytes."""
    await tx.execute(QUERIES["touch_document"], key, to_datetime(built_ms), form)


async def announce(pool: Any, versions: Mapping[str, int]) -> None:
    """Announce, before the commit, that documents are about to get these versions.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        await connection.execute(QUERIES["announce_documents"], list(versions), list(versions.values()))


async def drop(tx: Connection, keys: Sequence[str]) -> None:
    """Delete documents. Their versions continue to grow."""
    await tx.execute(QUERIES["drop_documents"], list(keys))


async def existing(tx: Connection, keys: Sequence[str]) -> list[str]:
    """Return the keys that were requested before."""
    return [row["key"] for row in await tx.fetch(QUERIES["document_keys"], list(keys))]


async def existing_from(tx: Connection, prefix: str) -> list[str]:
    """Return the keys with this prefix."""
    return [row["key"] for row in await tx.fetch(QUERIES["document_keys_from"], prefix)]


async def read_head(pool: Any, key: str, now_ms: int) -> Head | None:
    """Return the head of a stored document.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["document_head"], key)
    return _head(rows[0], now_ms) if rows else None


async def read(pool: Any, keys: Sequence[str], now_ms: int) -> dict[str, Document]:
    """Return stored documents by key.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    rows = await fetched(pool, QUERIES["documents_of"], list(keys))
    return {row["key"]: Document(_head(row, now_ms), row["payload"]) for row in rows}


def _head(row: Any, now_ms: int) -> Head:
    built_ms, changed_ms = to_ms(row["built_at"]), to_ms(row["changed_at"])
    return Head(
        row["version"], row["etag"], row["position"], checked_ms=now_ms, built_ms=built_ms, changed_ms=changed_ms
    )
