"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

    hold_league_lock: str
    seasons_of_matches: str
    ensure_seasons: str
    lock_seasons: str
    lock_matches: str
    store_matches: str
    advance_seasons: str
    votes_held: str
    store_votes: str
    predictions_held: str
    store_predictions: str
    recount_votes: str
    store_comments: str
    trim_comments: str
    ads_held: str
    store_ads: str
    store_rules: str
    users_of_matches: str
    users_to_rate: str
    rate_users: str
    begin_rating_run: str
    erase_votes: str
    erase_predictions: str
    erase_comments: str
    erase_ratings: str
    match_of_write: str
    names_of_season: str
    seasons_after: str
    version_of_resource: str
    database_counters: str
    slow_statements: str
    league_season_matches: str
    league_season_with_rules: str
    league_match: str
    league_match_with_votes: str
    league_match_comments: str
    league_matches_between: str
    league_matches_around: str
    league_club_matches: str
    league_window_matches: str
    league_stakes_of_user: str
    league_rating_page: str
    league_ads: str
    league_counts: str
    remade_schedules: str
    move_schedules: str
    remade_scores: str
    move_scores: str
    remade_results: str
    move_results: str
    remade_votes: str
    move_votes: str
    move_vote_counts: str
    remade_predictions: str
    move_predictions: str
    remade_comments: str
    move_comments: str
    remade_ads: str
    move_ads: str
    remade_rules: str
    move_rules: str


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
