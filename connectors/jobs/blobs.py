"""Documents and files by the SHA-256 of their bytes, in PostgreSQL in parts of 1 MiB.

Invariants. A blob is complete or does not exist: its bytes are first written to an unnamed file and hashed, then stored
in one transaction, so an interrupted transfer leaves nothing and a slow one holds no connection. The same bytes are
stored once, for all senders; each organization that has sent them owns them, and sees only blobs that it owns. Memory
is bounded by parts: a transfer holds a few of them, however large the blob is.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, TypeAlias

import asyncpg

from highwater.connectors.children import room_needed
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row, one_row, reading, transaction
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.clock import to_datetime

# The part of a transfer in memory: large enough that a statement's fixed cost is small beside its bytes.
PART_BYTES = 1 << 20

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


class BlobTooLargeError(HighwaterError):
    """The document is larger than the plan allows. Send a smaller document, or change the plan."""


class StorageFullError(HighwaterError):
    """The organization has no space left for this document. Change the plan."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob without its bytes; `file_name`: the name that its owner gave it, None without one."""

    sha256: str
    size_bytes: int
    media_type: str
    file_name: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """The result of storing bytes; `is_new`: the organization did not own them before."""

    sha256: str
    size_bytes: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class Spooled:
    """Bytes that have arrived completely, in a file that is deleted with its context."""

    file: IO[bytes]
    sha256: str
    sha512: str
    size_bytes: int


class _Spool:
    """A file that is written and hashed at once; its methods run in threads, one at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hashes = (hashlib.sha256(), hashlib.sha512())
        self._size_bytes = 0

    def add(self, content: bytes) -> None:
        for one in self._hashes:
            one.update(content)
        self._file.write(content)
        self._size_bytes += len(content)

    def end(self) -> Spooled:
        self._file.flush()
        sha256, sha512 = (one.hexdigest() for one in self._hashes)
        return Spooled(self._file, sha256, sha512, self._size_bytes)


@asynccontextmanager
async def spooled(stream: AsyncIterable[bytes], bytes_max: int) -> AsyncIterator[Spooled]:
    """Write incoming bytes to an unnamed file, which no crash leaves behind.

    Raises:
        BlobTooLargeError: more than `bytes_max` arrived; the rest is not read.
        UnavailableError: the folder of temporary files is full.
    """
    with room_needed(), tempfile.TemporaryFile(prefix="highwater-blob-") as file:
        spool, arrived, piece = _Spool(file), 0, bytearray()
        async for content in stream:
            arrived += len(content)
            if arrived > bytes_max:
                raise BlobTooLargeError(f"the document is larger than {bytes_max} bytes")
            piece += content
            if len(piece) >= PART_BYTES:
                await asyncio.to_thread(spool.add, bytes(piece))
                piece.clear()
        await asyncio.to_thread(spool.add, bytes(piece))
        yield await asyncio.to_thread(spool.end)


async def store(
    pool: Pool,
    found: Spooled,
    *,
    media_type: str,
    organization_id: str,
    now_ms: int,
    storage_bytes_max: int | None = None,
    file_name: str | None = None,
) -> Put:
    """Store the received bytes and the organization as their owner; if it owns them already, nothing changes.

    Raises:
        StorageFullError: it would own more than `storage_bytes_max`; None: without limit.
        UnavailableError: PostgreSQL is unavailable.
    """
    at = to_datetime(now_ms)
    async with transaction(pool) as tx:
        await tx.execute(QUERIES["hold_storage"], organization_id)
        held = await one_row(tx, QUERIES["storage_of"], organization_id, found.sha256)
        if held["is_owned"]:
            return Put(found.sha256, found.size_bytes, is_new=False)
        if storage_bytes_max is not None and held["stored_bytes"] + found.size_bytes > storage_bytes_max:
            raise StorageFullError(
                f"{organization_id} stores {held['stored_bytes']} of {storage_bytes_max} bytes; "
                f"there is no space for {found.size_bytes} more"
            )
        if await tx.fetchval(QUERIES["store_blob"], found.sha256, found.size_bytes, at) is not None:
            await _store_parts(tx, found)
        await tx.execute(QUERIES["store_blob_owner"], found.sha256, organization_id, media_type, at, file_name)
    return Put(found.sha256, found.size_bytes, is_new=True)


async def _store_parts(tx: Connection, found: Spooled) -> None:
    await asyncio.to_thread(found.file.seek, 0)
    for part in range(_parts(found.size_bytes)):
        content = await asyncio.to_thread(found.file.read, PART_BYTES)
        await tx.execute(QUERIES["store_blob_part"], found.sha256, part, content)


async def put(
    pool: Pool,
    stream: AsyncIterable[bytes],
    *,
    media_type: str,
    organization_id: str,
    now_ms: int,
    bytes_max: int,
    storage_bytes_max: int | None = None,
    file_name: str | None = None,
) -> Put:
    """Receive bytes and store them.

    Raises:
        BlobTooLargeError: there are more than `bytes_max`.
        StorageFullError: the organization would own more than `storage_bytes_max`.
        UnavailableError: PostgreSQL is unavailable.
    """
    async with spooled(stream, bytes_max) as found:
        return await store(
            pool,
            found,
            media_type=media_type,
            organization_id=organization_id,
            now_ms=now_ms,
            storage_bytes_max=storage_bytes_max,
            file_name=file_name,
        )


async def known(pool: Pool, ids: Iterable[str], organization_id: str) -> Mapping[str, Blob]:
    """Return those of the blobs that an organization owns, by id.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        rows = await connection.fetch(QUERIES["blobs_of"], organization_id, list(ids))
    return {row["sha256"]: _blob(row) for row in rows}


async def exists(pool: Pool, ids: Iterable[str], organization_id: str) -> bool:
    """Return whether an organization owns all of these blobs.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    wanted = set(ids)
    return not wanted or wanted == set(await known(pool, wanted, organization_id))


async def find(pool: Pool, sha256: str) -> Blob | None:
    """Return a blob with any owner; None if it does not exist.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        row = await connection.fetchrow(QUERIES["blob_of_anybody"], sha256)
    return None if row is None else _blob(row)


async def read(pool: Pool, blob: Blob) -> AsyncIterator[bytes]:
    """Yield the bytes of a blob, part by part; no connection is held between two of them.

    Raises:
        UnavailableError: PostgreSQL is unavailable, or has lost a part.
    """
    for part in range(_parts(blob.size_bytes)):
        async with reading(pool) as connection:
            content = await connection.fetchval(QUERIES["read_blob_part"], blob.sha256, part)
        if content is None:
            raise UnavailableError(f"part {part} of the blob {blob.sha256} does not exist")
        yield content


def _blob(row: Row) -> Blob:
    return Blob(row["sha256"], row["size_bytes"], row["media_type"], row["file_name"])


def _parts(size_bytes: int) -> int:
    return -(-size_bytes // PART_BYTES)
