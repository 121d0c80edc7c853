"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    sql_channels: str
    sql_insights: str
    sql_subscriptions: str
    sql_users: str
    sql_cluster_history: str
    sql_jobs: str
    sql_queries: str
    sql_matches: str
    sql_organizations: str
    sql_resource_versions: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
