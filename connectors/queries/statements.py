"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    ask_for_runs: str
    ask_for_forgotten_runs: str
    has_waiting_runs: str
    has_unended_runs: str
    waiting_runs: str
    runs_in_progress: str
    wanted_runs: str
    workers_with_runs: str
    lost_runs: str
    runs_of_worker: str
    hold_runs: str
    hold_run: str
    store_runs: str
    log_answers: str
    store_memories: str
    active_prompts: str
    memories_before: str
    logs_before: str
    channels_of_reader: str
    run_read: str
    run_timeline_read: str
    runs_of_user_read: str
    failed_runs_read: str
    stage_costs_read: str
    run_answers_read: str
    prompts_read: str
    prompt_history_read: str
    recorded_queries: str
    prompts_of_ids: str
    ensure_query_users: str
    lock_query_users: str
    users_with_unreleased_runs: str
    advance_query_users: str
    known_queries: str
    known_runs: str
    wait_for_locks_at_most: str
    log_queries: str
    lock_runs: str
    cancel_runs: str
    restart_runs: str
    hold_prompts: str
    prompts_of_roles: str
    deactivate_prompts: str
    store_prompts: str
    runs_to_erase: str
    erase_runs: str
    erase_raw_logs: str
    erase_memories: str
    erase_run_events: str
    erase_query_users: str
    query_pipeline_metrics: str
    query_stage_metrics: str
    query_context_metrics: str
    query_call_metrics: str
    query_store_sizes: str
    query_backlog: str
    runs_to_redact: str
    redact_runs: str
    redact_raw_logs: str
    redact_memories: str
    withdrawn_of_runs: str
    forget_contexts: str
    copy_tags: str
    remade_queries: str
    move_queries: str
    timeline_store: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
