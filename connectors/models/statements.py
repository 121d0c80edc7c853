"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    begin_calls: str
    end_calls: str
    count_embedding: str
    find_call: str
    erase_answers: str
    erase_calls: str
    totals_of_calls: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
