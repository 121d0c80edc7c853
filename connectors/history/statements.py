"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    add_history_sample: str
    drop_history_samples: str
    history_samples: str
    history_samples_of: str
    watch: str
    drop_watched: str
    watched: str
    ended_stage_seconds: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
