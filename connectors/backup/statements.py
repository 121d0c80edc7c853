"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    backup_moment: str
    backup_tables: str
    backup_sequences: str
    backup_positions: str
    backup_migrations: str
    backup_blobs: str
    has_migrations: str
    has_positions: str
    is_read_into: str
    other_sessions: str
    drop_own: str
    begin_restore: str
    begin_catch_up: str
    catch_up_in_progress: str
    end_restore: str
    raise_sequence: str
    set_restored_positions: str
    stopped_places: str
    outbox_after: str
    outbox_top: str
    drop_outbox: str
    drop_commands_of_ended_jobs: str
    users_to_rebuild: str
    load_rebuilds: str
    load_marks: str
    load_user_revisions: str
    load_season_revisions: str
    runs_to_load: str
    load_runs: str
    load_ordinals: str
    jobs_to_load: str
    load_jobs: str
    load_usage_entries: str
    load_usage_sums: str
    load_usage_of_jobs: str
    load_alerts_sent: str
    load_ingest_revisions: str
    load_lease_epochs: str
    identity_of_outbox: str
    raise_sequence_above: str
    renew_versions: str
    raise_floor_above: str
    known_resources: str
    raise_lost_floor: str
    hold_comparison: str
    is_read_only: str
    mark_server_compared: str
    mark_server_caught_up: str
    highest_positions: str
    stored_numbers: str
    stored_epochs: str
    stored_versions: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
