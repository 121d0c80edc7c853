"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    verify_create: str
    verify_hasten: str
    verify_drop: str
    verify_lock: str
    verify_moment: str
    verify_positions: str
    verify_empty_outbox: str
    verify_channels: str
    verify_insights: str
    verify_users: str
    verify_subscriptions: str
    verify_curations: str
    verify_matches: str
    verify_votes: str
    verify_predictions: str
    verify_vote_counts: str
    verify_comments: str
    verify_ads: str
    verify_rules: str
    verify_runs: str
    verify_prompts: str
    verify_jobs: str
    verify_usage: str
    verify_organizations: str
    verify_chunks: str
    verify_former_chunks: str
    verify_cluster_versions: str
    verify_user_versions: str
    verify_marks: str
    verify_versions: str
    verify_statuses: str
    verify_timeline: str
    verify_match_states: str
    verify_ingests: str
    verify_chunk_words: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
