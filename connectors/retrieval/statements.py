"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    words_asked: str
    words_required: str
    names_asked: str
    count_chunks: str
    visible_chunks: str
    visible_chunks_unfiltered: str
    visible_chunks_unfiltered_with_words: str
    visible_chunks_beside: str
    visible_chunks_beside_indexed: str
    visible_former_chunks: str
    all_candidates: str
    near_candidates: str
    candidates_without_words: str
    candidates_with_words: str
    scored_without_words: str
    scored_with_words: str
    best_of_all: str
    best_of_sources: str
    whole_chunks: str
    whole_former_chunks: str
    neighbours_of: str
    open_namespaces: str
    closed_namespaces: str
    places_of_documents: str
    bases_of_insights: str
    basis_content: str
    channels_named: str
    count_insights: str
    count_channels: str
    insights_with_words: str
    count_insights_with_words: str
    newest_vectors: str
    newest_insights: str
    insights_to_score: str
    insights_to_label: str
    label_insights: str
    chunks_to_label: str
    label_chunks: str
    former_chunks_to_label: str
    label_former_chunks: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
