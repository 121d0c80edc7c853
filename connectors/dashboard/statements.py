"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    dashboard_users: str
    dashboard_versions: str
    dashboard_texts: str
    dashboard_insights: str
    dashboard_cluster_sizes: str
    dashboard_documents: str
    dashboard_runs: str
    dashboard_jobs: str
    dashboard_ingests: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
