"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    share_erasures: str
    hold_erasures: str
    user_erasures: str
    erasure_of_user: str
    remember_user_erasures: str
    lock_organizations: str
    organizations_of: str
    store_organizations: str
    usage_of_month: str
    counted_of_work: str
    count_usage: str
    sizes_of_blobs: str
    lock_sessions: str
    roles_of_users: str
    store_roles: str
    store_revocations: str
    session_lock_shared: str
    session_lock: str
    read_session_rules: str
    store_revocation: str
    read_revocations_since: str
    ensure_users: str
    lock_users: str
    subscriptions_of_users: str
    update_users: str
    store_demands: str
    drop_old_demands: str
    upsert_subscriptions: str
    erase_subscriptions: str
    erase_role: str
    erase_stats: str
    erase_stats_row: str
    curations_of_users: str
    drop_curations: str
    store_curation: str
    note_curated: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
