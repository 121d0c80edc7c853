"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    take_leases: str
    renew_leases: str
    release_leases: str
    drop_leases: str
    drop_ended_leases: str
    live_leases: str
    hold_lease: str
    owner_of_lease: str
    drop_lease_of: str
    knows_restores: str
    restore_in_progress: str
    compared_server: str
    schema_of_vectors: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
