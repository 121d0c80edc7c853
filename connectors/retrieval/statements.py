"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    search_settings: str
    words_asked: str
    count_chunks: str
    visible_chunks: str
    all_candidates: str
    near_candidates: str
    best_candidates: str
    neighbours_of: str
    open_namespaces: str
    places_of_documents: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
