"""The tables that the specification names, as the migrations make them in a real PostgreSQL."""

from __future__ import annotations

import pytest

from tests.integration.api_server import Seeds

_COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1"
_UNIQUE = """
    SELECT array_agg(attribute.attname::text ORDER BY place) AS columns
    FROM pg_index, unnest(indkey) WITH ORDINALITY AS part (number, place), pg_attribute AS attribute
    WHERE indrelid = to_regclass($1) AND indisunique AND attribute.attrelid = indrelid AND attribute.attnum = part.number
    GROUP BY indexrelid
"""


@pytest.mark.parametrize(
    ("table", "columns", "unique"),
    [
        pytest.param(
            "channels", "channel_id current_seq last_insight_ts", ["channel_id"], marks=pytest.mark.requirement("R0.15")
        ),
        pytest.param(
            "insights",
            "insight_id channel_id seq ts embedding",
            ["insight_id", "channel_id seq"],
            marks=pytest.mark.requirement("R0.16"),
        ),
        pytest.param(
            "subscriptions", "user_id channel_id", ["user_id channel_id"], marks=pytest.mark.requirement("R0.17")
        ),
        pytest.param(
            "user_cluster_hwm",
            "user_id channel_id last_seq",
            ["user_id channel_id"],
            marks=pytest.mark.requirement("R0.18"),
        ),
        pytest.param(
            "user_stats",
            "user_id pending_insights_count last_clustered_at last_active_at last_enqueued_at cluster_version plan",
            ["user_id"],
            marks=pytest.mark.requirement("R0.19"),
        ),
        pytest.param(
            "user_clusters",
            "user_id cluster_version clusters updated_at",
            ["user_id cluster_version"],
            marks=pytest.mark.requirement("R0.20"),
        ),
        pytest.param(
            "feed_documents",
            "user_id cluster_version built_at ttl_seconds payload",
            ["user_id"],
            marks=pytest.mark.requirement("R0.21"),
        ),
        pytest.param(
            "pipeline_runs",
            "id user_id user_query status analysis_result draft_context final_context_payload final_answer error attempt"
            " archive_status created_at updated_at",
            ["id"],
            marks=pytest.mark.requirement("R1.8"),
        ),
        pytest.param(
            "raw_logs",
            "user_id message_type content pipeline_run_id created_at",
            ["pipeline_run_id message_type"],
            marks=pytest.mark.requirement("R1.9"),
        ),
        pytest.param(
            "lsm_storage",
            "id user_id time_bucket_start time_bucket_end tags summary raw_log_ids pipeline_run_id",
            ["pipeline_run_id"],
            marks=pytest.mark.requirement("R1.10"),
        ),
        pytest.param(
            "system_prompts",
            "role_name prompt_template is_active",
            ["role_name"],
            marks=pytest.mark.requirement("R1.11"),
        ),
        pytest.param(
            "chunks",
            "ns slot source_id chunk_no content title url content_hash embedding embedding_stale created_at updated_at"
            " published_at to_delete source_partition source_offset",
            ["ns slot source_id chunk_no"],
            marks=pytest.mark.requirement("R3.1", "R3.10"),
        ),
    ],
)
async def test_a_table_has_its_columns_and_what_is_unique(seeds: Seeds, table: str, columns: str, unique: list[str]):
    """Every named column exists, and every named key is a unique index."""
    found = {row["column_name"] for row in await seeds.run(_COLUMNS, table)}
    assert set(columns.split()) - found == set()
    keys = {" ".join(row["columns"]) for row in await seeds.run(_UNIQUE, table)}
    assert set(unique) - keys == set()


@pytest.mark.parametrize(
    ("table", "column", "kind", "nullable"),
    [
        ("channels", "current_seq", "bigint", "NO"),
        ("channels", "last_insight_ts", "timestamp with time zone", "YES"),
        ("insights", "seq", "bigint", "NO"),
        ("user_cluster_hwm", "last_seq", "bigint", "NO"),
        ("user_stats", "pending_insights_count", "bigint", "NO"),
        ("chunks", "content_hash", "text", "NO"),
        ("chunks", "embedding", "USER-DEFINED", "YES"),
    ],
)
async def test_a_column_has_its_type(seeds: Seeds, table: str, column: str, kind: str, nullable: str):
    """Types and NOT NULL where the specification names them."""
    (row,) = await seeds.run(
        "SELECT data_type, is_nullable FROM information_schema.columns "
        "WHERE table_schema = 'public' AND table_name = $1 AND column_name = $2",
        table,
        column,
    )
    assert (row["data_type"], row["is_nullable"]) == (kind, nullable)
