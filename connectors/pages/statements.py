"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    lock_document: str
    share_pages: str
    hold_pages: str
    note_page_changes: str
    has_page_changes: str
    changed_pages: str
    this_moment: str
    forget_page_changes: str
    document: str
    document_head: str
    documents_of: str
    document_keys: str
    document_keys_from: str
    put_document: str
    touch_document: str
    announce_documents: str
    documents_of_former_forms: str
    drop_documents: str
    copy_barrier: str
    copy_versions: str
    renew_copy_lease: str
    end_copy_lease: str
    raise_copy_barrier: str
    copies_not_told: str
    bump_version: str
    version_of_bytes: str
    raise_version_floor: str
    erase_resources: str
    bump_known_versions: str
    share_withdrawals: str
    hold_withdrawals: str
    tag_objects: str
    tag_insights: str
    retracted_of: str
    documents_with: str
    untag_documents: str
    untag_versions: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
