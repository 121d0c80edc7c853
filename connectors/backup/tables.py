"""The rows of our tables, as COPY writes and reads them: text, compressed, one file per table.

Why COPY and not `pg_dump`: this machine may have no client programs, or older ones than the server; migrations create
the schema, so only rows are needed; and positions are read in the same transaction.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from highwater.connectors.backup.manifest import File, Table
from highwater.connectors.backup.statements import QUERIES

# Tables that depend on this server and time: leases, which start with the clock; a running restore; which start of the
# server was compared; the migrations, which the manifest names. Sums of words, which triggers compute from the rows of
# `chunks` and would count twice. A day of charts, which would show another system's day. Vectors of a next model, which
# are computed again.
NOT_COPIED = frozenset(
    {
        "leases",
        "copy_leases",
        "compared_servers",
        "restore_progress",
        "schema_migrations",
        "chunk_words",
        "history_samples",
        "chunk_next_vectors",
        "history_watched",
    }
)
_SUFFIX = ".copy.gz"
# gzip level: a third of the default's time for 10 % more bytes.
_LEVEL = 3
_PIECE_BYTES = 1 << 20


async def copy_out(connection: Any, folder: Path) -> list[Table]:
    """Write every table into the folder, as the connection's transaction sees it."""
    rows = [row for row in await connection.fetch(QUERIES["backup_tables"]) if row["name"] not in NOT_COPIED]
    return [await _copy_out(connection, folder, row["name"], list(row["columns"])) for row in rows]


async def _copy_out(connection: Any, folder: Path, name: str, columns: list[str]) -> Table:
    path = folder / f"{name}{_SUFFIX}"
    path.touch(mode=0o600)
    with path.open("wb") as plain, gzip.GzipFile("", "wb", _LEVEL, plain, mtime=0) as packed:

        async def take(piece: bytes) -> None:
            packed.write(piece)

        status: str = await connection.copy_from_table(name, output=take, columns=columns)
    return Table(name=name, columns=columns, rows=int(status.rsplit(maxsplit=1)[-1]), file=_file_of(path))


def _file_of(path: Path) -> File:
    digest = hashlib.sha256()
    with path.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            digest.update(piece)
    return File(name=path.name, bytes=path.stat().st_size, sha256=digest.hexdigest())


async def copy_in(connection: Any, folder: Path, tables: list[Table], sequences: Mapping[str, int]) -> int:
    """Fill the tables, whose own rows from the migrations are deleted first, and set the sequences; return the number
    of rows.

    An older backup may hold a table that is no longer copied.
    """
    rows = 0
    tables = [table for table in tables if table["name"] not in NOT_COPIED]
    for table in reversed(tables):  # referring tables before the tables they refer to
        await connection.execute(f'DELETE FROM "{table["name"]}"')  # noqa: S608 (a name of the manifest, which was checked)
    for table in tables:
        await connection.copy_to_table(
            table["name"], source=_pieces(folder / table["file"]["name"]), columns=table["columns"]
        )
        rows += table["rows"]
    for name, value in sequences.items():
        await connection.execute(QUERIES["raise_sequence"], name, value)
    return rows


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    with path.open("rb") as packed:
        while piece := packed.read(_PIECE_BYTES):
            yield unpack.decompress(piece)
    yield unpack.flush()
