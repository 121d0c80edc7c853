"""The answers of the routes of leagues and of their cache, for the OpenAPI document.

Invariant: no answer has other members. An optional member is `NotRequired`; a member without a value is `None`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from highwater.api.core.answers import Time


class Goals(TypedDict):
    """Goals of both teams."""

    home_goals: int
    away_goals: int


class VoteCounts(TypedDict):
    """Number of votes per outcome."""

    home: int
    draw: int
    away: int


class MatchMeta(TypedDict):
    """The part of a match that does not change while it is played; `result` is present once it is known.

    `extra_time` and `penalties` are present if there were any, as in `Match`.
    """

    match_id: str
    season: str
    round: str
    kickoff: Time
    time_unknown: bool
    status: Literal["scheduled", "postponed", "cancelled"]
    state: Literal["scheduled", "live", "final"]
    home: str
    away: str
    result: NotRequired[Goals]
    extra_time: NotRequired[Goals]
    penalties: NotRequired[Goals]
    finalized_at: NotRequired[Time]


class Match(TypedDict):
    """A match with its goals, null before kickoff; `minute` is present while it is in play.

    The goals of a result are those after regular time. `extra_time` has those after extra time, the ones before
    included, and `penalties` those of the shoot-out; each is present if there was one.
    """

    match_id: str
    season: str
    round: str
    kickoff: Time
    time_unknown: bool
    status: Literal["scheduled", "postponed", "cancelled"]
    state: Literal["scheduled", "live", "final"]
    home: str
    away: str
    home_goals: int | None
    away_goals: int | None
    minute: NotRequired[int | None]
    extra_time: NotRequired[Goals]
    penalties: NotRequired[Goals]
    finalized_at: NotRequired[Time]


class MatchLive(TypedDict):
    """The part of a match that changes while it is played."""

    match_id: str
    state: Literal["scheduled", "live", "final"]
    home_goals: int | None
    away_goals: int | None
    minute: int | None
    votes: VoteCounts


class MatchPage(TypedDict):
    """A match; `live` is null once it no longer changes."""

    meta: MatchMeta
    live: MatchLive | None


class MatchToPredict(Match):
    """A match that can be predicted."""

    votes: VoteCounts


class MatchesToPredict(TypedDict):
    """Matches of the next days."""

    days: int
    matches: list[MatchToPredict]


class PredictedMatch(Match):
    """A match that a user voted on or predicted, and the outcome; null: no vote, no prediction or no outcome yet."""

    vote: Literal["home", "draw", "away"] | None
    vote_in_time: bool | None
    prediction: Goals | None
    prediction_in_time: bool | None
    outcome: Literal["home", "draw", "away"] | None
    points: int | None
    is_exact: bool | None
    is_correct: bool | None


class PredictionsOfUser(TypedDict):
    """The predictions of a user, latest kickoff first."""

    user_id: str
    predictions: list[PredictedMatch]


class TeamRecord(TypedDict):
    """The record of a team."""

    played: int
    won: int
    drawn: int
    lost: int
    goals_for: int
    goals_against: int
    goal_difference: int
    points: int


class PointsDeducted(TypedDict):
    """Points that are subtracted, and the reason."""

    points: int
    reason: str


class TeamDeduction(PointsDeducted):
    """A deduction of a team."""

    team: str


class TeamWithdrawal(TypedDict):
    """A team whose matches do not count, and the reason."""

    team: str
    reason: str


class SeasonRules(TypedDict):
    """The declared rules of a season."""

    deductions: list[TeamDeduction]
    tie_breaks: list[str]
    withdrawn: list[TeamWithdrawal]
    rounds_counted: list[str]
    rounds_not_counted: list[str]


class TableRow(TeamRecord):
    """A team of a league table; `deductions` is present if points were deducted, which `points` no longer contains."""

    position: int
    team: str
    deductions: NotRequired[list[PointsDeducted]]


class LeagueTable(TypedDict):
    """The standings of a season; `rules` is present if rules were declared."""

    season: str
    table: list[TableRow]
    rules: NotRequired[SeasonRules]


class ScheduleRound(TypedDict):
    """A round of a schedule."""

    round: str
    matches: list[Match]


class LeagueSchedule(TypedDict):
    """All matches of a season, by round."""

    season: str
    rounds: list[ScheduleRound]


class LeagueResults(TypedDict):
    """The results of a season."""

    season: str
    results: list[Match]


class LongestRun(TypedDict):
    """The longest run of matches of a kind, and its team."""

    team: str
    matches: int


class TeamStats(TypedDict):
    """A team at home and away."""

    team: str
    home: TeamRecord
    away: TeamRecord
    clean_sheets: int


class LeagueStats(TypedDict):
    """Aggregates of a season; shares are between 0 and 1."""

    season: str
    scheduled: int
    played: int
    goals: int
    goals_per_match: float
    home_goals: int
    away_goals: int
    home_wins: int
    draws: int
    away_wins: int
    home_share: float
    draw_share: float
    away_share: float
    clean_sheets: int
    biggest_wins: list[Match]
    most_goals: list[Match]
    longest_winning_run: LongestRun | None
    longest_unbeaten_run: LongestRun | None
    teams: list[TeamStats]


class LeagueStatsLive(TypedDict):
    """Matches in play of a season."""

    season: str
    matches: list[Match]


class BracketTie(TypedDict):
    """A tie of one or two matches, from the side of the team that is at home first; `winner` is null until it is decided.

    Its goals are the sum over its matches, after extra time where there was one.
    """

    home: str
    away: str
    home_goals: int | None
    away_goals: int | None
    winner: str | None
    matches: list[Match]


class BracketRound(TypedDict):
    """A stage of a knock-out."""

    name: str
    ties: list[BracketTie]


class LeagueBracket(TypedDict):
    """The knock-out rounds of a season, the first stage first."""

    season: str
    rounds: list[BracketRound]


class SeasonName(TypedDict):
    """A season."""

    season: str


class Seasons(TypedDict):
    """A page of the seasons."""

    seasons: list[SeasonName]
    next_cursor: str | None


class MatchesLive(TypedDict):
    """Matches in play of all seasons."""

    matches: list[Match]


class MatchComment(TypedDict):
    """A comment on a match."""

    user_id: str
    text: str
    posted_at: Time


class MatchComments(TypedDict):
    """The latest comments on a match, the newest first."""

    match_id: str
    comments: list[MatchComment]


class ClubMatches(TypedDict):
    """A club's matches, the newest first."""

    club: str
    matches: list[Match]


class RatedUser(TypedDict):
    """A user of the rating; `exact`, `correct` and `judged` count predictions."""

    rank: int
    user_id: str
    points: int
    exact: int
    correct: int
    judged: int


class Leaderboard(TypedDict):
    """A page of the rating."""

    page: int
    users: list[RatedUser]
    next_cursor: str | None


class Achievement(TypedDict):
    """An achievement, and the progress towards it."""

    name: str
    reached: bool
    count: int
    needed: int


class Achievements(TypedDict):
    """The achievements of a user."""

    user_id: str
    achievements: list[Achievement]


class LeagueCounts(TypedDict):
    """Total counts."""

    seasons: int
    matches: int
    final: int
    live: int
    postponed: int
    cancelled: int
    votes: int
    predictions: int
    rated_users: int


class Advertisement(TypedDict):
    """An advertisement; `payload` is its content."""

    ad_id: str
    payload: Any


class Advertisements(TypedDict):
    """All advertisements."""

    ads: list[Advertisement]


class UpgradeReason(TypedDict):
    """A reason for a larger Redis."""

    name: str
    text: str


class RedisCounters(TypedDict):
    """Counters of Redis."""

    is_up: bool
    hit_ratio: float
    keyspace_hits: int
    keyspace_misses: int
    evicted_keys: int
    connected_clients: int
    used_memory_bytes: int


class ConnectionPool(TypedDict):
    """The connections of this process to PostgreSQL."""

    size: int
    idle: int
    size_max: int


class PostgresCounters(TypedDict):
    """Counters of PostgreSQL; `slow_statements_by`: measured by the extension, or found running at samples."""

    is_up: bool
    pool: ConnectionPool
    connection_waits: int
    lock_waits: int
    transactions: int
    transactions_per_second: float
    slow_statements: int
    slow_statements_by: Literal["pg_stat_statements", "pg_stat_activity"]


class HttpReport(TypedDict):
    """Responses of this process in the span."""

    requests: int
    error_ratio: float
    p95_seconds: float
    p99_seconds: float


class CacheVerdict(TypedDict):
    """Whether the cache is large enough, and the reasons."""

    should_upgrade: bool
    reasons: list[UpgradeReason]
    span_seconds: float
    redis: RedisCounters
    database: PostgresCounters
    http: HttpReport
