"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    hold_storage: str
    storage_of: str
    store_blob: str
    store_blob_part: str
    store_blob_owner: str
    blobs_of: str
    blob_of_anybody: str
    read_blob_part: str
    deck_to_export: str
    ask_for_jobs: str
    ask_for_forgotten_jobs: str
    count_waiting_jobs: str
    has_waiting_jobs: str
    has_unended_jobs: str
    waiting_jobs: str
    jobs_in_progress: str
    wanted_jobs: str
    workers_with_jobs: str
    lost_jobs: str
    jobs_of_worker: str
    hold_jobs: str
    store_jobs: str
    store_presentation: str
    store_late_totals: str
    semantic_vectors_of: str
    store_semantic_vector: str
    prune_semantic_vectors: str
    channels_of_user: str
    jobs_read: str
    jobs_of_organization_read: str
    failed_jobs_read: str
    presentation_read: str
    job_calls_read: str
    known_submissions: str
    known_jobs: str
    lock_jobs: str
    submissions_to_restart: str
    republish_jobs: str
    jobs_to_erase: str
    erase_jobs: str
    erase_presentations: str
    erase_presentation_shares: str
    add_presentation_link: str
    presentation_links_read: str
    delete_presentation_link: str
    shared_presentation_read: str
    tag_documents: str
    deleted_texts: str
    decks_to_redact: str
    redact_decks: str
    withdraw_semantic_vectors: str
    withdrawn_semantic_vectors: str
    forget_semantic_vectors: str
    remade_jobs: str
    move_jobs: str
    raise_usage: str
    usage_recounted: str
    store_views: str
    presentation_owner: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
