"""The event behind a document: the newest one among its facts (X-Caused-By).

Invariant: an event that cannot change a document is never named as its cause, so facts that a document leaves out are
left out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from highwater.schemas.positions import Cause
from highwater.streams.league.matches import Match


def newest(causes: Iterable[Cause | None]) -> str:
    """Return the position of the newest event, "" without any."""
    found = [cause for cause in causes if cause is not None]
    return max(found, key=lambda cause: cause.order).position if found else ""


def settled(matches: Iterable[Match]) -> Iterator[Cause | None]:
    """Yield the causes of a table, a schedule, results and aggregates: dates and results, never a score in play."""
    for match in matches:
        yield match.schedule_by
        yield match.result_by


def everything(matches: Iterable[Match]) -> Iterator[Cause | None]:
    """Yield the causes of a page with scores in play."""
    for match in matches:
        yield match.schedule_by
        yield match.score_by
        yield match.result_by


def live(match: Match, votes_by: Cause | None) -> Iterator[Cause | None]:
    """Yield the causes of the live part of a match; its date only before any score or vote."""
    moved = [match.score_by, match.result_by, votes_by]
    yield from moved if any(moved) else [match.schedule_by]
