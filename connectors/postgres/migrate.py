"""The migrations: `migrations/*.sql`, each applied once, in the order of their names, and never edited afterwards."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import asyncpg

from highwater.connectors.postgres.leases import LeaseKind, holding
from highwater.connectors.postgres.pool import Connection, transaction
from highwater.connectors.postgres.statements import QUERIES
from highwater.schemas.errors import ConfigurationError, UnavailableError

FOLDER = Path(__file__).parent / "migrations"
# An arbitrary constant that only the migrations lock; the outbox uses the two-number form of advisory locks.
_MIGRATION_LOCK = 4_815_162_342
# What PostgreSQL does not do within a transaction.
_CONCURRENTLY = "INDEX CONCURRENTLY"
# Ends with the session, else after the longest build.
_BUILD_SECONDS, _LEASE_LOOK_SECONDS = 3_600.0, 0.5


def _migrations() -> list[tuple[str, str]]:
    return [(path.stem, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.sql"))]


def known_migrations() -> dict[str, str]:
    """Return the migrations of this version, in order, with the SHA-256 of each."""
    return {name: _digest(text) for name, text in _migrations()}


async def refuse_half_restored(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    """Refuse a database whose restore has not finished.

    Raises:
        UnavailableError: a restore is in progress, or was interrupted: wait for it, or run it again with --force.
    """
    async with transaction(pool) as tx:
        known = await tx.fetchval(QUERIES["knows_restores"])
        source = await tx.fetchval(QUERIES["restore_in_progress"]) if known else None
    if source is not None:
        raise UnavailableError(
            f"a restore from {source} is in progress or was interrupted: wait until it ends, or run it again with --force"
        )


async def migrate(pool: asyncpg.Pool[asyncpg.Record], only: Collection[str] | None = None) -> list[str]:
    """Apply the missing migrations, in order, under one lock; return their names. `only`: no others than these.

    Those that build indexes beside readers and writers come last, each statement by itself.

    Raises:
        ConfigurationError: an applied migration was edited.
    """
    wanted = {name: text for name, text in _migrations() if only is None or name in only}
    async with transaction(pool) as tx:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        await tx.execute("CREATE TABLE IF NOT EXISTS schema_migrations (name text PRIMARY KEY, sha256 text NOT NULL)")
        missing = await _missing(tx, wanted)
        applied = [name for name in missing if _CONCURRENTLY not in wanted[name]]
        for name in applied:
            await tx.execute(wanted[name])
            await _record(tx, name, wanted[name])
    later = {name: wanted[name] for name in missing if name not in applied}
    return applied + (await _build_indexes(pool, later) if later else [])


async def _build_indexes(pool: asyncpg.Pool[asyncpg.Record], wanted: Mapping[str, str]) -> list[str]:
    """Build the indexes of migrations, outside a transaction, so that readers and writers of their tables do not wait.

    Under the lease of those who build indexes: two builds on one table would wait for each other. What an interrupted
    build left, its migration drops first.
    """
    async with pool.acquire() as connection:
        while True:
            async with holding(connection, pool, LeaseKind.CHUNK_INDEXES, "keeper", seconds=_BUILD_SECONDS) as lease:
                if lease is not None:
                    missing = await _missing(connection, wanted)
                    for name in missing:
                        for statement in wanted[name].rstrip(";\n").split(";\n"):
                            await connection.execute(statement, timeout=_BUILD_SECONDS)
                        await _record(connection, name, wanted[name])
                    return missing
            await asyncio.sleep(_LEASE_LOOK_SECONDS)


async def _missing(connection: Connection, wanted: Mapping[str, str]) -> list[str]:
    known = {row["name"]: row["sha256"] for row in await connection.fetch("SELECT name, sha256 FROM schema_migrations")}
    for name, text in wanted.items():
        if known.get(name, _digest(text)) != _digest(text):
            raise ConfigurationError(f"migration {name} was changed after it was applied; write a new one instead")
    return [name for name in wanted if name not in known]


async def _record(connection: Connection, name: str, text: str) -> None:
    await connection.execute("INSERT INTO schema_migrations VALUES ($1, $2)", name, _digest(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
