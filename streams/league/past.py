"""The matches of a season at an earlier position in the log, from the `league.match-changed` events until then.

Invariant: the state after some changes is a function of these alone; for each match the last change counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from highwater.schemas.league import MatchChanged
from highwater.schemas.positions import Cause
from highwater.streams.league.matches import Match, State, Status, extra_time_of, penalties_of


class Change(NamedTuple):
    """A stored match after a change, and the event of the change."""

    match: MatchChanged
    by: Cause


def matches_after(changes: Iterable[Change]) -> list[Match]:
    """The matches after changes in the order of the log, by id. A change that does not name its round has an empty one."""
    latest = {change.match["match_id"]: change for change in changes}
    return [_match(latest[match_id]) for match_id in sorted(latest)]


def names_rounds(changes: Iterable[Change]) -> bool:
    """Whether the last change of every match names its round; those that were written by former versions do not."""
    latest = {change.match["match_id"]: change.match for change in changes}
    return all(match["round"] is not None for match in latest.values())


def _match(change: Change) -> Match:
    told = change.match
    state = State(told["state"])
    return Match(
        match_id=told["match_id"],
        season=told["season"],
        round=told["round"] or "",
        kickoff_ms=told["kickoff"],
        home=told["home"],
        away=told["away"],
        schedule_by=change.by,
        status=Status(told["status"]),
        home_goals=told["home_goals"],
        away_goals=told["away_goals"],
        finalized_ms=told["finalized_at"],
        score_by=None if state is State.SCHEDULED else change.by,
        result_by=change.by if state is State.FINAL else None,
        extra_time=extra_time_of(told),
        penalties=penalties_of(told),
    )
