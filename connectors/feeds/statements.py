"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    backtest_by_event_time: str
    backtest_by_arrival: str
    backtest_span: str
    read_active_basis: str
    share_active_basis: str
    hold_active_basis: str
    read_basis: str
    corpus_of_basis: str
    insert_basis: str
    newest_own_basis: str
    set_next_basis: str
    switch_basis: str
    read_reembedding: str
    begin_reembedding: str
    advance_reembedding: str
    end_reembedding: str
    corpus_size: str
    corpus_sample: str
    awaited_insights: str
    insights_behind: str
    set_embeddings: str
    set_next_embeddings: str
    insights_to_reembed: str
    insights_to_move: str
    move_embeddings: str
    forget_awaited: str
    digest_version_at: str
    digest_time_of: str
    digest_weeks: str
    digest_channels: str
    digest_insights: str
    ensure_channels: str
    lock_channels: str
    known_insights: str
    known_contents: str
    advance_channels: str
    any_early_retraction: str
    take_early_retractions: str
    retract_early_insights: str
    retract_insights: str
    remember_retractions: str
    erase_hwm: str
    erase_marks: str
    erase_demands: str
    erase_clusters: str
    erase_history: str
    erase_curations: str
    erase_feed: str
    heads_of_channels: str
    subscribers_page: str
    announce_channels: str
    rebuild_user: str
    rebuild_channels: str
    rebuild_insights: str
    unread_insights: str
    last_version: str
    rebuild_curations: str
    has_retractions_beyond: str
    note_enqueued: str
    take_rebuild: str
    finish_rebuilt: str
    finish_unbuilt: str
    await_vectors: str
    delay_rebuild: str
    insert_clusters: str
    preliminary_users: str
    note_replacement_asked: str
    drop_old_clusters: str
    drop_old_neighbours: str
    drop_old_history: str
    raise_hwm: str
    hide_channels: str
    mark_hwm: str
    drop_old_marks: str
    answer_demands: str
    exclude_insights: str
    mirror_channels: str
    mirror_users: str
    mirror_hwm: str
    mirror_channels_after: str
    mirror_users_after: str
    dirty_since: str
    read_clusters_head: str
    read_feed_head: str
    read_feed_payload: str
    read_clusters: str
    read_died_clusters: str
    read_told_since: str
    read_cluster_version: str
    read_living_cluster: str
    read_cluster_end: str
    read_cluster_events: str
    read_pending: str
    read_pending_sum: str
    read_user: str
    read_demand: str
    read_demands: str
    read_subscriptions: str
    read_channel: str
    read_channels: str
    read_insight: str
    read_insights_of_feed: str
    read_positions: str
    hold_clusters: str
    store_feed: str
    is_user_known: str
    insights_to_withdraw: str
    redact_versions: str
    drop_feeds_of_versions: str
    version_of_feed: str
    labels_of_readers: str
    labels_of_user: str
    phrases_still_said: str
    replace_labels: str
    retracted_insights: str
    texts_of_remaining: str
    remade_insights: str
    move_insights: str
    move_channels: str
    remade_retractions: str
    remade_subscriptions: str
    remade_plans: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
