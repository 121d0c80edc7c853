"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    positions_of: str
    hold_positions: str
    positions_of_groups: str
    insert_positions: str
    skip_to: str
    advance_positions: str
    plan_anew: str
    outbox_take: str
    outbox_backlog: str
    outbox_delete: str
    relay_epochs_of: str
    raise_relay_epochs: str
    stopped_of: str
    stopped_all: str
    stop_partition: str
    park_partition: str
    resume_partitions: str
    position_of: str
    truncations_all: str
    truncations_open: str
    note_truncations: str
    highest_positions: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
