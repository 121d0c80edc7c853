"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    chaos_unfinished: str
    chaos_open_losses: str
    chaos_stored: str
    chaos_wrong: str
    chaos_rewind: str
    chaos_positions: str
    chaos_terminate: str
    chaos_region: str
    chaos_standby: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
