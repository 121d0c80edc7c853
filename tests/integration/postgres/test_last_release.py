"""A database of the last release with rows in it: this version migrates it, and the last release's rows still fit afterwards."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.backup.tables import NOT_COPIED, copy_in, copy_out
from highwater.connectors.kafka.truncation import all_truncations
from highwater.connectors.postgres.migrate import known_migrations, migrate
from highwater.connectors.postgres.pool import open_pool
from tests import ROOT
from tests.conftest import Stack
from tests.integration.connecting import fresh

RELEASE = json.loads((ROOT / "tests" / "contract" / "last_release.json").read_text(encoding="utf-8"))
RUN, USER, JOB = (f"55555555-0000-4000-8000-00000000000{number}" for number in range(3))
# Rows as the last release stores them: of each subsystem at least one, with the columns that it has.
ROWS = (
    "INSERT INTO channels (channel_id, current_seq) VALUES ('c', 1)",
    (
        "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, source_partition, source_offset) "
        "VALUES ('i', 'c', 1, 'epoch', 'epoch', 'text', 0, 0)"
    ),
    "INSERT INTO user_stats (user_id, cluster_version, revision) VALUES ('u', 1, 7)",
    "INSERT INTO user_cluster_hwm (user_id, channel_id, last_seq) VALUES ('u', 'c', 1)",
    (
        "INSERT INTO user_clusters (user_id, cluster_version, clusters, noise, dataset_size, omitted, hwm, updated_at, "
        "caused_by) VALUES ('u', 1, '[]', 0, 1, 0, '{\"c\": 1}', 'epoch', 'feeds.rebuild-requested/0/0')"
    ),
    "INSERT INTO resource_versions VALUES ('clusters:u', 3, 'clusters-3-abc', 'feeds.rebuild-requested/0/0', 'epoch')",
    "INSERT INTO league_seasons VALUES ('2026', 4)",
    (
        "INSERT INTO league_matches (match_id, season, round, kickoff, time_unknown, status, home, away, schedule_ms, "
        "schedule_position) VALUES ('m', '2026', '1', 'epoch', false, 'scheduled', 'A', 'B', 1, 'league.match-scheduled/0/0')"
    ),
    "INSERT INTO league_votes VALUES ('m', 'u', 'home', 'epoch', 1, 'league.vote-cast/0/0')",
    f"INSERT INTO query_users VALUES ('{USER}', 1)",
    (
        "INSERT INTO pipeline_runs (id, user_id, ordinal, user_query, status, archive_status, released, revision, position, "
        f"caused_by, created_at, updated_at) VALUES ('{RUN}', '{USER}', 1, 'What is new?', 'COMPLETED', 'STORED', true, 7, "
        "'queries.query-submitted/0/0', 'queries.stage-requested/0/0', 'epoch', 'epoch')"
    ),
    (
        "INSERT INTO jobs (job_id, kind, organization_id, user_id, args, status, arrived_ms, position, caused_by, created_at, "
        f"updated_at) VALUES ('{JOB}', 'generation', 'o', 'u', '{{}}', 'pending', 1, 'jobs.job-submitted/0/0', "
        "'jobs.job-submitted/0/0', 'epoch', 'epoch')"
    ),
    "INSERT INTO usage_sequences (organization_id, period, last_seq) VALUES ('o', '2026-01', 2)",
    "INSERT INTO chunk_sources (ns, slot, source_id) VALUES ('n', 's', 'guide')",
    (
        "INSERT INTO chunks (ns, slot, source_id, chunk_no, content, content_hash, created_at, updated_at, ingest_id, "
        "source_partition, source_offset) VALUES ('n', 's', 'guide', 0, 'text', 'h', 'epoch', 'epoch', 'in', 0, 0)"
    ),
    "INSERT INTO positions VALUES ('insights', 'feeds.insight-ingested', 0, 'id', 1)",
    "INSERT INTO outbox (shard, topic, headers) VALUES (0, 'feeds.user-changed', '[]')",
)


@pytest.fixture
async def released(stack: Stack) -> AsyncIterator[Any]:
    """A pool on a database that the last release has made and filled."""
    name = fresh("released").replace("-", "_")
    admin = await asyncpg.connect(stack.database)
    await admin.execute(f"CREATE DATABASE {name}")
    try:
        address, _, options = stack.database.partition("?")
        url = f"{address.rsplit('/', 1)[0]}/{name}" + (f"?{options}" if options else "")
        async with await open_pool(url, size_max=2) as pool:
            await migrate(pool, RELEASE["migrations"])
            for statement in ROWS:
                await pool.execute(statement)
            yield pool
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


async def rows_of(pool: Any, columns: dict[str, list[str]]) -> dict[str, list[str]]:
    """Every row of these tables, by these columns."""
    found = {}
    for table, names in columns.items():
        listed = ", ".join(f'"{name}"' for name in names)
        rows = await pool.fetch(f'SELECT ({listed})::text AS row FROM "{table}" ORDER BY 1')
        found[table] = [row["row"] for row in rows]
    return found


async def test_rows_of_the_last_release_are_migrated_and_still_fit(released: Any, tmp_path: Path) -> None:
    """Its rows are kept as they are, and what it would store next to them, without the new columns, is taken."""
    tables = [row for row in await released.fetch(QUERIES["backup_tables"]) if row["name"] not in NOT_COPIED]
    columns = {row["name"]: list(row["columns"]) for row in tables}
    before = await rows_of(released, columns)
    async with released.acquire() as connection:
        copied = await copy_out(connection, tmp_path)
    assert await all_truncations(released) == []  # as `highwater upgrade --check` asks before the migration

    assert sorted(await migrate(released)) == sorted(set(known_migrations()) - set(RELEASE["migrations"]))
    assert await rows_of(released, columns) == before

    async with released.acquire() as connection, connection.transaction():
        await copy_in(connection, tmp_path, copied, {})
    assert await rows_of(released, columns) == before
    assert sum(map(len, before.values())) > len(ROWS)
