"""`highwater backup`: a snapshot of the database with the positions it contains, the registry's schemas, and the log's
ends.

Invariant: the ends of the log are read before the snapshot is taken, so that everything the snapshot's transactions
publish later lies beyond them; roles continue meanwhile. Nothing is written outside the folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from highwater.connectors.backup.manifest import (
    FORMAT,
    MANIFEST,
    BackupError,
    Manifest,
    Registered,
    TopicAt,
    positions_of,
    write_manifest,
)
from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.backup.tables import copy_out
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.postgres.pool import open_connection
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import ConfigurationError
from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.settings import Settings

_CLOSING_SECONDS_MAX = 5.0


async def back_up(context: ProcessContext, settings: Settings, folder: Path, product: str) -> Manifest:
    """Write a backup into a folder that is empty or does not exist.

    Raises:
        BackupError: the folder is not empty, or cannot be written.
        UnavailableError: Kafka, the registry or PostgreSQL does not answer.
    """
    _prepare(folder)
    topics = await topics_now(context)
    registry = await schemas_now(context)
    async with (
        own_connection(settings, "highwater backup") as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        await connection.execute(QUERIES["backup_moment"])
        positions = positions_of(await connection.fetch(QUERIES["backup_positions"]))
        migrations = [list(row) for row in await connection.fetch(QUERIES["backup_migrations"])]
        blobs = dict(await connection.fetchrow(QUERIES["backup_blobs"]))
        tables = await copy_out(connection, folder)
        # Sequences are not transactional: read last, they are above every number in the rows.
        sequences = {row["name"]: row["last_value"] for row in await connection.fetch(QUERIES["backup_sequences"])}
    manifest = Manifest(
        format=FORMAT, product=product, taken_at=iso_from_ms(context.clock()), migrations=migrations, tables=tables,
        sequences=sequences, topics=topics, positions=positions, registry=registry, blobs=blobs,
    )  # fmt: skip
    write_manifest(folder, manifest)
    return manifest


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise BackupError(f"{folder} cannot be written: {error.strerror or error}") from error
    if held:
        what = "a backup" if MANIFEST in held else held[0]
        raise BackupError(f"{folder} is not empty (it holds {what}); name an empty or a new folder")


async def schemas_now(context: ProcessContext) -> list[Registered]:
    """Return every version of the catalogue's subjects, in the order of ids."""
    found = [
        Registered(topic=topic.name, version=version, schema_id=schema_id, schema=text)
        for topic in TOPICS.values()
        if topic.schema
        for version, schema_id, text in await context.registry.versions_of(topic)
    ]
    return sorted(found, key=lambda one: (one["schema_id"], one["topic"]))


async def topics_now(context: ProcessContext) -> dict[str, TopicAt]:
    """Return the catalogue's topics on the broker, with their ids and ends."""
    counts = await context.admin.partition_counts()
    names = sorted(topic.name for topic in all_topics() if topic.name in counts)
    topic_ids = await context.admin.topic_ids(names)
    ranges = await context.admin.log_ranges([(name, p) for name in names for p in range(counts[name])])
    return {
        name: TopicAt(topic_id=topic_ids[name], ends=[ranges[name, p].high for p in range(counts[name])])
        for name in names
    }


@asynccontextmanager
async def own_connection(settings: Settings, name: str, **session: str) -> AsyncIterator[Any]:
    """Yield a connection without a statement timeout.

    Raises:
        ConfigurationError: DATABASE_URL is not set.
        UnavailableError: PostgreSQL does not answer.
    """
    if settings.database is None:
        raise ConfigurationError("DATABASE_URL is not set")
    given: Mapping[str, str] = {"application_name": name, "idle_in_transaction_session_timeout": "0", **session}
    connection: Any = await open_connection(
        settings.database, admit=None, timeout=5.0, command_timeout=None, server_settings=dict(given)
    )
    try:
        yield connection
    finally:
        await connection.close(timeout=_CLOSING_SECONDS_MAX)
