"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    sources_to_fill: str
    chunks_to_fill: str
    sources_moved: str
    reuse_vectors: str
    name_models: str
    namespaces_of_model: str
    hold_sources_to_fill: str
    store_vectors: str
    chunks_behind: str
    namespaces_not_filled: str
    vector_indexes_wanted: str
    vector_indexes_left_over: str
    vector_indexes_to_look_at: str
    note_vector_index: str
    vector_index_is_dense: str
    set_build_memory: str
    namespaces_to_fold: str
    fold_chunk_words: str
    switches_to_change: str
    begin_switch: str
    end_switch: str
    forget_next_vectors: str
    namespaces_to_switch: str
    switches_in_progress: str
    note_switch_due: str
    chunks_to_switch: str
    hold_namespace_in_switch: str
    store_next_vectors: str
    is_indexed_beside: str
    is_indexed: str
    await_index: str
    indexes_of_namespace: str
    hold_namespace_to_switch: str
    has_sent_vectors: str
    name_next_model: str
    namespaces_to_exchange: str
    chunks_to_exchange: str
    exchange_vectors: str
    sort_in_words: str
    drop_former_vectors: str
    end_exchange: str
    last_event_of_namespace: str
    switches_behind: str
    chunk_namespace_read: str
    chunk_ingest_read: str
    chunk_ingest_statuses_read: str
    chunk_ingest_namespaces_read: str
    chunk_ingest_sources_read: str
    chunk_ingest_worst_read: str
    chunk_ingest_failures_read: str
    chunk_lifecycle_read: str
    make_namespaces: str
    lock_namespaces: str
    hold_namespaces: str
    give_namespaces: str
    align_namespaces: str
    rate_namespaces: str
    namespaces_to_sweep: str
    orphans_to_remove: str
    cold_to_remove: str
    cold_count: str
    lock_sources_to_sweep: str
    remove_chunks: str
    remove_former_chunks: str
    chunk_namespaces_of: str
    hold_namespaces_without_dimensions: str
    set_namespace_dimensions: str
    ensure_chunk_sources: str
    lock_chunk_sources: str
    store_chunk_sources: str
    chunk_ingests_of: str
    store_chunk_ingests: str
    chunks_of: str
    store_chunks: str
    chunk_failures_of: str
    store_chunk_failures: str
    mark_orphans: str
    end_chunk_ingests: str
    hold_ingest: str
    ingest_totals: str
    withdrawn_chunks: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
