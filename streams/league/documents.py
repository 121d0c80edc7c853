"""The documents of matches, clubs, predictions, the rating, advertisements and administrators.

Invariant: a document is a function of its facts, in any order; it does not contain the time at which it was built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.positions import Cause
from highwater.streams.league.match_objects import by_kickoff, meta, moving, newest_first, settled
from highwater.streams.league.matches import Match, Status

# The latest comments of a match (R4.18).
COMMENTS_MAX = 120
# Users per page of the rating.
PAGE_USERS = 50
DAY_MS = 86_400_000


class Votes(NamedTuple):
    """The number of votes for each outcome, and the last vote; None before any."""

    home: int = 0
    draw: int = 0
    away: int = 0
    caused_by: Cause | None = None

    def as_json(self) -> dict[str, int]:
        """Return the counts."""
        return {"home": self.home, "draw": self.draw, "away": self.away}


class Comment(NamedTuple):
    """A comment on a match; `posted_ms` is its own time, which is shown, `caused_by` orders it."""

    user_id: str
    text: str
    posted_ms: int
    caused_by: Cause


class Rated(NamedTuple):
    """A user's row of the rating."""

    user_id: str
    points: int
    exact: int
    correct: int
    judged: int


class Ad(NamedTuple):
    """An advertisement; without a payload it was deleted."""

    ad_id: str
    payload: str | None
    caused_by: Cause


def match_meta(match: Match) -> dict[str, Any]:
    """Return the fixed part of a match."""
    return meta(match)


def match_live(match: Match, votes: Votes) -> dict[str, Any]:
    """Return the live part: score and votes."""
    return {
        "match_id": match.match_id,
        "state": match.state.value,
        "home_goals": match.home_goals,
        "away_goals": match.away_goals,
        "minute": match.minute,
        "votes": votes.as_json(),
    }


def match_comments(match_id: str, comments: Iterable[Comment]) -> dict[str, Any]:
    """Return the latest comments in the order of the log, newest first."""
    latest = sorted(comments, key=lambda comment: comment.caused_by.order, reverse=True)[:COMMENTS_MAX]
    shown = [{"user_id": c.user_id, "text": c.text, "posted_at": iso_from_ms(c.posted_ms)} for c in latest]
    return {"match_id": match_id, "comments": shown}


def club_matches(club: str, matches: Sequence[Match]) -> dict[str, Any]:
    """Return a club's matches over all seasons, latest kickoff first."""
    return {"club": club, "matches": [moving(match) for match in newest_first(matches)]}


def predictions_active(days: int, upcoming: Mapping[Match, Votes], now_ms: int) -> dict[str, Any]:
    """Return what can be predicted: matches of the next days without a result that are not cancelled, with their votes."""
    last_ms = now_ms + days * DAY_MS
    shown = by_kickoff(
        match
        for match in upcoming
        if not match.is_final and match.status is not Status.CANCELLED and now_ms <= match.kickoff_ms <= last_ms
    )
    return {"days": days, "matches": [{**settled(match), "votes": upcoming[match].as_json()} for match in shown]}


def predictions_causes(upcoming: Mapping[Match, Votes]) -> Iterator[Cause | None]:
    """Yield the events behind it: dates, votes, and results, since a match with a result is no longer in it."""
    for match, votes in upcoming.items():
        yield match.schedule_by
        yield match.result_by
        yield votes.caused_by


def leaderboard(page: int, rated: Sequence[Rated], better: int) -> dict[str, Any]:
    """Return a page of the rating: users by points, then exact results; equal ones share a rank, and the next rank
    skips accordingly.

    Args:
        page: its number, from 1.
        rated: its users in order of the rating, and one more if there is a next page.
        better: how many of all users are better than the first of `rated`.
    """
    users = []
    rank, before = better + 1, None
    for index, row in enumerate(rated[:PAGE_USERS]):
        merit = (row.points, row.exact)
        if before is not None and merit != before:
            rank = (page - 1) * PAGE_USERS + index + 1
        before = merit
        users.append({"rank": rank, **row._asdict()})
    return {"page": page, "users": users, "next_cursor": str(page + 1) if len(rated) > PAGE_USERS else None}


def ads(stored: Iterable[Ad]) -> dict[str, Any]:
    """Return all advertisements by id; a payload is the submitted JSON, unchanged.

    It is not parsed: too deeply nested JSON must not break the others.
    """
    shown = sorted((ad.ad_id, ad.payload) for ad in stored if ad.payload is not None)
    return {"ads": [{"ad_id": ad_id, "payload": orjson.Fragment(payload)} for ad_id, payload in shown]}
