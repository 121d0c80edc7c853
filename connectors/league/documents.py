"""How each league document is built: one statement reads its facts, pure functions decide it, and its bytes are JSON.

Invariant: equal facts give equal bytes, for any order of the rows, so that a rebuilt document is a new version
only if its content changed. One statement is one snapshot, so no document mixes two. `streams/league/` defines the
contents.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

from highwater.connectors.identity import erasures
from highwater.connectors.league.rows import match_of, rules_of_row, stake_of, votes_of
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, one_row
from highwater.schemas.positions import Cause
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.league import bracket, documents, ratings, results, schedule, standings, stats
from highwater.streams.league.causes import everything, live, newest, settled
from highwater.streams.league.matches import Match
from highwater.streams.league.windows import WindowOptions, kickoff_range, live_ends_ms, season_windows

DAY_MS = 86_400_000
# Matches in a document over all seasons. A club plays 60 a year, the leagues of the world fewer than this per day.
MATCHES_MAX = 5_000
# Matches of one user: the shown ones are a season, the counted ones more than anybody has voted on.
STAKES_SHOWN_MAX, STAKES_COUNTED_MAX = 1_000, 20_000
# How far ahead predictions are offered; the default range is 6 days (R4.19).
DAYS_MAX = 31
PAGES_MAX = 1_000_000
# An ended match is included this long, for the event that ended it.
AROUND_MS = DAY_MS


class Built(NamedTuple):
    """A document's bytes, and the position of the newest event behind its facts; "" if there is none."""

    payload: bytes
    caused_by: str


# Takes a connection, the subject of the document, and now; returns None if it does not exist.
Builder = Callable[[Connection, str, int], Awaitable[Built | None]]


async def _storable(builder: Builder, tx: Connection, about: str, now_ms: int) -> Built | None:
    """Run the builder unless the name contains NUL, which PostgreSQL cannot store."""
    return None if "\x00" in about else await builder(tx, about, now_ms)


def _built(document: Mapping[str, Any], causes: Iterable[Cause | None]) -> Built:
    return Built(orjson.dumps(document), newest(causes))


def _number(about: str, most: int) -> int | None:
    """Parse a number from 1 without leading zeros, so that no document has two keys."""
    return int(about) if re.fullmatch(r"[1-9][0-9]{0,8}", about) and int(about) <= most else None


class _Builders:
    """The builders, one method per kind. All take what a `Builder` takes, whether or not they need it."""

    def __init__(self, options: WindowOptions) -> None:
        self._options = options

    async def season(
        self,
        page: Callable[[str, Sequence[Match]], Mapping[str, Any]],
        causes: Callable[[Sequence[Match]], Iterable[Cause | None]],
        tx: Connection,
        season: str,
        now_ms: int,
    ) -> Built | None:
        """Build a page of all matches of a season; None without a match."""
        matches = [match_of(row) for row in await tx.fetch(QUERIES["league_season_matches"], season)]
        return _built(page(season, matches), causes(matches)) if matches else None

    async def table(self, tx: Connection, season: str, now_ms: int) -> Built | None:
        """Build the table of a season by its rules; None without a match."""
        rows = await tx.fetch(QUERIES["league_season_with_rules"], season)
        if not rows:
            return None
        matches, rules = [match_of(row) for row in rows], rules_of_row(rows[0])
        return _built(standings.table(season, matches, rules), standings.table_causes(matches, rules))

    async def stats_live(self, tx: Connection, season: str, now_ms: int) -> Built | None:
        """Build the matches of a season in play."""
        matches = [match_of(row) for row in await tx.fetch(QUERIES["league_season_matches"], season)]
        if not matches:
            return None
        return _built(stats.stats_live(season, matches, now_ms, self._options.duration_ms), everything(matches))

    async def match_meta(self, tx: Connection, match_id: str, now_ms: int) -> Built | None:
        """Build the fixed part of a match."""
        row = await tx.fetchrow(QUERIES["league_match"], match_id)
        if row is None:
            return None
        match = match_of(row)
        return _built(documents.match_meta(match), settled([match]))

    async def match_live(self, tx: Connection, match_id: str, now_ms: int) -> Built | None:
        """Build score and votes of a match; it ends three hours after the match (R4.17)."""
        row = await tx.fetchrow(QUERIES["league_match_with_votes"], match_id)
        if row is None:
            return None
        match, votes = match_of(row), votes_of(row)
        ends_ms = live_ends_ms(match, self._options)
        if ends_ms is not None and now_ms >= ends_ms:
            return None
        return _built(documents.match_live(match, votes), live(match, votes.caused_by))

    async def match_comments(self, tx: Connection, match_id: str, now_ms: int) -> Built | None:
        """Build the latest comments on a match."""
        rows = await tx.fetch(QUERIES["league_match_comments"], match_id, documents.COMMENTS_MAX)
        if not rows:
            return None
        comments = [
            documents.Comment(
                row["user_id"], row["body"], to_ms(row["posted_at"]), Cause(row["posted_ms"], row["position"])
            )
            for row in rows
            if row["position"] is not None
        ]
        scheduled_by = Cause(rows[0]["schedule_ms"], rows[0]["schedule_position"])
        causes = [comment.caused_by for comment in comments] or [scheduled_by]
        return _built(documents.match_comments(match_id, comments), causes)

    async def predictions_active(self, tx: Connection, about: str, now_ms: int) -> Built | None:
        """Matches of the next days."""
        days = _number(about, DAYS_MAX)
        if days is None:
            return None
        until = to_datetime(now_ms + days * DAY_MS)
        rows = await tx.fetch(QUERIES["league_matches_between"], to_datetime(now_ms), until, MATCHES_MAX)
        upcoming = {match_of(row): votes_of(row) for row in rows}
        document = documents.predictions_active(days, upcoming, now_ms)
        return _built(document, documents.predictions_causes(upcoming))

    async def _stakes(self, tx: Connection, user_id: str, count_max: int) -> list[ratings.Stake]:
        return [stake_of(row) for row in await tx.fetch(QUERIES["league_stakes_of_user"], user_id, count_max)]

    async def predictions_user(self, tx: Connection, user_id: str, now_ms: int) -> Built | None:
        """Build a user's predictions; a user without any has an empty document, perhaps after an erasure."""
        stakes = await self._stakes(tx, user_id, STAKES_SHOWN_MAX)
        causes = [*ratings.stake_causes(stakes), await erasures.cause_of(tx, user_id)]
        return _built(ratings.user_predictions(user_id, stakes), causes)

    async def achievements(self, tx: Connection, user_id: str, now_ms: int) -> Built | None:
        """Build a user's achievements."""
        stakes = await self._stakes(tx, user_id, STAKES_COUNTED_MAX)
        causes = [*ratings.stake_causes(stakes), await erasures.cause_of(tx, user_id)]
        return _built(ratings.achievements(user_id, stakes), causes)

    async def leaderboard(self, tx: Connection, about: str, now_ms: int) -> Built | None:
        """Build a page of the rating; the first always exists."""
        page = _number(about, PAGES_MAX)
        if page is None:
            return None
        before = (page - 1) * documents.PAGE_USERS
        rows = await tx.fetch(QUERIES["league_rating_page"], documents.PAGE_USERS + 1, before)
        if not rows and page > 1:
            return None
        rated = [documents.Rated(*(row[name] for name in documents.Rated._fields)) for row in rows]
        document = documents.leaderboard(page, rated, rows[0]["better"] if rows else 0)
        return _built(document, (Cause(row["result_ms"] or 0, row["position"]) for row in rows[: documents.PAGE_USERS]))

    async def admin_stats(self, tx: Connection, about: str, now_ms: int) -> Built | None:
        """Build the counts."""
        counts = dict(await one_row(tx, QUERIES["league_counts"]))
        position = counts.pop("position")
        return Built(orjson.dumps(counts), position or "")

    async def ads(self, tx: Connection, about: str, now_ms: int) -> Built | None:
        """All advertisements."""
        held = [
            documents.Ad(row["ad_id"], row["payload"], Cause(row["changed_ms"], row["position"]))
            for row in await tx.fetch(QUERIES["league_ads"])
        ]
        return _built(documents.ads(held), (ad.caused_by for ad in held))

    async def matches_live(self, tx: Connection, about: str, now_ms: int) -> Built | None:
        """Matches in play of all seasons."""
        reach_ms = max(AROUND_MS, self._options.duration_ms)
        kickoffs = to_datetime(now_ms - reach_ms), to_datetime(now_ms + reach_ms)
        rows = await tx.fetch(QUERIES["league_matches_around"], *kickoffs, to_datetime(now_ms), MATCHES_MAX)
        matches = [match_of(row) for row in rows]
        return _built(stats.matches_live(matches, now_ms, self._options.duration_ms), everything(matches))

    async def club_matches(self, tx: Connection, club: str, now_ms: int) -> Built | None:
        """Build a club's matches; a club exists if it plays in one."""
        matches = [match_of(row) for row in await tx.fetch(QUERIES["league_club_matches"], club, MATCHES_MAX)]
        return _built(documents.club_matches(club, matches), everything(matches)) if matches else None

    async def match_window(self, tx: Connection, about: str, now_ms: int) -> Built | None:
        """Build the times in which each season is in its match window."""
        kickoffs = [to_datetime(ms) for ms in kickoff_range(self._options, now_ms)]
        matches = [match_of(row) for row in await tx.fetch(QUERIES["league_window_matches"], *kickoffs)]
        return _built({"windows": season_windows(matches, self._options, now_ms)}, settled(matches))


def builders(options: WindowOptions) -> Mapping[str, Builder]:
    """Return the builder of every kind of served document, by kind."""
    make = _Builders(options)
    made: dict[str, Builder] = {
        "league_table": make.table,
        "league_schedule": partial(make.season, schedule.schedule, settled),
        "league_results": partial(make.season, results.results, results.results_causes),
        "league_stats": partial(make.season, stats.stats, settled),
        "league_bracket": partial(make.season, bracket.bracket, settled),
        "league_stats_live": make.stats_live,
        "match_meta": make.match_meta,
        "match_live": make.match_live,
        "match_comments": make.match_comments,
        "predictions_active": make.predictions_active,
        "predictions_user": make.predictions_user,
        "leaderboard": make.leaderboard,
        "achievements": make.achievements,
        "admin_stats": make.admin_stats,
        "ads": make.ads,
        "matches_live": make.matches_live,
        "club_matches": make.club_matches,
        "match_window": make.match_window,
    }
    return {name: partial(_storable, builder) for name, builder in made.items()}
