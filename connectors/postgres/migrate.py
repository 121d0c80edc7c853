"""The migrations: `migrations/*.sql`, each applied once, in the order of their names, and never edited afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import asyncpg

from highwater.connectors.postgres.pool import transaction
from highwater.connectors.postgres.statements import QUERIES
from highwater.schemas.errors import ConfigurationError, UnavailableError

FOLDER = Path(__file__).parent / "migrations"
# An arbitrary constant that only the migrations lock; the outbox uses the two-number form of advisory locks.
_MIGRATION_LOCK = 4_815_162_342


def _migrations() -> list[tuple[str, str]]:
    return [(path.stem, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.sql"))]


def known_migrations() -> dict[str, str]:
    """Return the migrations of this version, in order, with the SHA-256 of each."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in _migrations()}


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

    Raises:
        ConfigurationError: an applied migration was edited.
    """
    applied = []
    async with transaction(pool) as tx:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        await tx.execute("CREATE TABLE IF NOT EXISTS schema_migrations (name text PRIMARY KEY, sha256 text NOT NULL)")
        known = {row["name"]: row["sha256"] for row in await tx.fetch("SELECT name, sha256 FROM schema_migrations")}
        for name, text in _migrations():
            if only is not None and name not in only:
                continue
            digest = hashlib.sha256(text.encode()).hexdigest()
            if name not in known:
                await tx.execute(text)
                await tx.execute("INSERT INTO schema_migrations VALUES ($1, $2)", name, digest)
                applied.append(name)
            elif known[name] != digest:
                raise ConfigurationError(f"migration {name} was changed after it was applied; write a new one instead")
    return applied
