"""Which event is behind a document: the newest one among the facts that it is made from (X-Caused-By).

The invariant: an event that cannot change a document is never named as its cause, so what a document leaves out is left out
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from highwater.schemas.positions import Cause
from highwater.streams.league.matches import Match


def newest(causes: Iterable[Cause | None]) -> str:
    """The position of the newest event, "" when there is none."""
    found = [cause for cause in causes if cause is not None]
    return max(found, key=lambda cause: cause.order).position if found else ""


def settled(matches: Iterable[Match]) -> Iterator[Cause | None]:
    """What a table, a schedule, results and aggregates are made from: dates and results, never a score in play."""
    for match in matches:
        yield match.schedule_by
        yield match.result_by


def everything(matches: Iterable[Match]) -> Iterator[Cause | None]:
    """What a page with scores in play is made from."""
    for match in matches:
        yield match.schedule_by
        yield match.score_by
        yield match.result_by


def live(match: Match, votes_by: Cause | None) -> Iterator[Cause | None]:
    """What the moving part of a match is made from; its date only as long as nothing moved."""
    moved = [match.score_by, match.result_by, votes_by]
    yield from moved if any(moved) else [match.schedule_by]
