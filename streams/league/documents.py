"""The documents of matches, clubs, predictions, the rating, advertisements and administrators.

The invariant: a document is a function of its facts, in any order; it does not contain the time at which it was made.
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
# Users on a page of the rating.
PAGE_USERS = 50
DAY_MS = 86_400_000


class Votes(NamedTuple):
    """How many voted for which outcome, and the vote that came last; None before any."""

    home: int = 0
    draw: int = 0
    away: int = 0
    caused_by: Cause | None = None

    def as_json(self) -> dict[str, int]:
        """The counts."""
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
    """An advertisement; without a payload it was taken away."""

    ad_id: str
    payload: str | None
    caused_by: Cause


def match_meta(match: Match) -> dict[str, Any]:
    """What does not move while a match is played."""
    return meta(match)


def match_live(match: Match, votes: Votes) -> dict[str, Any]:
    """What moves: score and votes."""
    return {
        "match_id": match.match_id,
        "state": match.state.value,
        "home_goals": match.home_goals,
        "away_goals": match.away_goals,
        "minute": match.minute,
        "votes": votes.as_json(),
    }


def match_comments(match_id: str, comments: Iterable[Comment]) -> dict[str, Any]:
    """The latest comments, as the log has them, the newest first."""
    latest = sorted(comments, key=lambda comment: comment.caused_by.order, reverse=True)[:COMMENTS_MAX]
    shown = [{"user_id": c.user_id, "text": c.text, "posted_at": iso_from_ms(c.posted_ms)} for c in latest]
    return {"match_id": match_id, "comments": shown}


def club_matches(club: str, matches: Sequence[Match]) -> dict[str, Any]:
    """A club's matches over all seasons, the latest kickoff first."""
    return {"club": club, "matches": [moving(match) for match in newest_first(matches)]}


def predictions_active(days: int, upcoming: Mapping[Match, Votes], now_ms: int) -> dict[str, Any]:
    """What can be predicted: matches of the next days that have no result and are not cancelled, with their votes."""
    last_ms = now_ms + days * DAY_MS
    shown = by_kickoff(
        match
        for match in upcoming
        if not match.is_final and match.status is not Status.CANCELLED and now_ms <= match.kickoff_ms <= last_ms
    )
    return {"days": days, "matches": [{**settled(match), "votes": upcoming[match].as_json()} for match in shown]}


def predictions_causes(upcoming: Mapping[Match, Votes]) -> Iterator[Cause | None]:
    """The events behind it: dates, votes, and results, for one that got its result is no longer in it."""
    for match, votes in upcoming.items():
        yield match.schedule_by
        yield match.result_by
        yield votes.caused_by


def leaderboard(page: int, rated: Sequence[Rated], better: int) -> dict[str, Any]:
    """A page of the rating: users by points, then exact results; equal ones share a rank, and the next is as if they had not.

    Args:
        page: its number, from 1.
        rated: its users in order of the rating, and one more if there is a next page.
        better: how many users of all are better than the first of `rated`.
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


def ads(held: Iterable[Ad]) -> dict[str, Any]:
    """All advertisements by id; a payload is the JSON that was put, as it was put.

    It is not parsed: JSON that nests deeper than can be written again must not take the others with it.
    """
    shown = sorted((ad.ad_id, ad.payload) for ad in held if ad.payload is not None)
    return {"ads": [{"ad_id": ad_id, "payload": orjson.Fragment(payload)} for ad_id, payload in shown]}
