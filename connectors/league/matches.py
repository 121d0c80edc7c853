"""Stores events of matches: the common part of the sinks of schedules and of results.

Invariant: the rows of a batch's seasons are locked first, then those of its matches, each in the order of keys; events
are folded into the stored state. An unchanged match is neither written nor published. Pages that a change makes stale
are recorded in its transaction, so that it shows on all of them at once (`connectors/pages/changes.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.checking import divided
from highwater.connectors.kafka.outbox import OutboxRow
from highwater.connectors.kafka.records import DeadLetter, Event, Record
from highwater.connectors.league.rows import match_of
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.pages.changes import note_changes
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.errors import UnavailableError
from highwater.schemas.league import MATCH_CHANGED, MATCH_SCHEDULED, MatchChanged
from highwater.schemas.positions import Cause, parse_position
from highwater.schemas.topic_names import EventT
from highwater.streams.clock import Clock, to_datetime
from highwater.streams.league.affected import affected_keys
from highwater.streams.league.folding import Folded, MatchEvent, Step, fold_match, former_teams
from highwater.streams.league.matches import Match
from highwater.streams.league.validation import check_league_event

_NO_GOALS = (None, None)


class Change(NamedTuple):
    """A match of a batch, before and after the change."""

    before: Match | None
    after: Match
    folded: Folded


def checked(events: Sequence[Event[EventT]]) -> tuple[list[Event[EventT]], list[DeadLetter]]:
    """Return valid events, and the others as dead letters."""
    return divided(events, check_league_event)


def cause_of(record: Record) -> Cause:
    """Return an event as a cause."""
    return Cause(record.arrived_ms, str(record.position))


class MatchStore:
    """Folds events into matches, and publishes one `match-changed` per changed match and batch."""

    def __init__(self, codec: Codec, clock: Clock, *, source: str) -> None:
        self._codec = codec
        self._clock = clock
        self._source = source

    async def store(self, tx: Connection, events: Sequence[Event[MatchEvent]]) -> list[DeadLetter]:
        """Read, fold, store; return events that name another season than their match has."""
        if not events:
            return []
        steps: dict[str, list[Step]] = defaultdict(list)
        records: dict[str, Record] = {}
        for record, value in events:
            cause = cause_of(record)
            steps[value["match_id"]].append(Step(record.topic, value, cause))
            records[cause.position] = record
        revisions = await _lock_seasons(tx, steps)
        rows = await tx.fetch(QUERIES["lock_matches"], sorted(steps))
        held = {row["match_id"]: match_of(row) for row in rows}
        if any(match.season not in revisions for match in held.values()):
            raise _overtaken()
        folds = {match_id: fold_match(held.get(match_id), steps[match_id]) for match_id in steps}
        changes = [
            Change(held.get(match_id), folded.match, folded)
            for match_id, folded in folds.items()
            if folded.match is not None and folded.changed
        ]
        await self._write(tx, changes, revisions)
        refused = [step for folded in folds.values() for step in folded.refused]
        return [
            DeadLetter(records[step.cause.position], "wrong_season", f"{step.value['match_id']!r} is of another season")
            for step in refused
        ]

    async def _write(self, tx: Connection, changes: Sequence[Change], revisions: dict[str, int]) -> None:
        if not changes:
            return
        columns = list(map(list, zip(*(_row(change.after) for change in changes), strict=True)))
        status = await tx.execute(QUERIES["store_matches"], *columns)
        if status != f"INSERT 0 {len(changes)}":
            raise _overtaken()
        now_ms = self._clock()
        told, made_old = [], set()
        for change in sorted(changes, key=lambda change: _cause(change).order):
            revisions[change.after.season] += 1
            event = _event(change, revisions[change.after.season])
            told.append(self._told(change, event, now_ms))
            made_old.update(affected_keys(change.before, event))
        seasons = sorted({change.after.season for change in changes})
        await tx.execute(QUERIES["advance_seasons"], seasons, [revisions[season] for season in seasons])
        await note_changes(tx, made_old)
        await outbox.add(tx, told)

    def _told(self, change: Change, event: MatchChanged, now_ms: int) -> OutboxRow:
        cause = parse_position(_cause(change).position)
        return outbox.event_row(self._codec, MATCH_CHANGED, event, source=self._source, now_ms=now_ms, caused_by=cause)


def _event(change: Change, revision: int) -> MatchChanged:
    match = change.after
    extra_time, penalties = match.extra_time or _NO_GOALS, match.penalties or _NO_GOALS
    return {
        "match_id": match.match_id,
        "season": match.season,
        "changed": list(change.folded.changed),
        "kickoff": match.kickoff_ms,
        "status": match.status,
        "state": match.state,
        "home": match.home,
        "away": match.away,
        "former_teams": former_teams(change.before, match),
        "home_goals": match.home_goals,
        "away_goals": match.away_goals,
        "finalized_at": match.finalized_ms,
        "revision": revision,
        "round": match.round,
        "home_goals_extra_time": extra_time[0],
        "away_goals_extra_time": extra_time[1],
        "home_penalties": penalties[0],
        "away_penalties": penalties[1],
    }


async def _lock_seasons(tx: Connection, steps: Mapping[str, Sequence[Step]]) -> dict[str, int]:
    """Lock the seasons that the matches have, or get by their first schedule; return their revisions."""
    rows = await tx.fetch(QUERIES["seasons_of_matches"], sorted(steps))
    season_of = {row["match_id"]: row["season"] for row in rows}
    created_by: dict[str, Cause] = {}
    for match_id, of_match in steps.items():
        first = min(of_match, key=lambda step: step.cause.order)
        season = season_of.setdefault(match_id, first.value["season"])
        if first.topic == MATCH_SCHEDULED:
            created_by[season] = min(first.cause, created_by.get(season, first.cause), key=lambda cause: cause.order)
    seasons = sorted(set(season_of.values()))
    found = [created_by.get(season) for season in seasons]
    created_ms = [None if cause is None else cause.arrived_ms for cause in found]
    await tx.execute(
        QUERIES["ensure_seasons"], seasons, created_ms, [None if cause is None else cause.position for cause in found]
    )
    return {row["season"]: row["revision"] for row in await tx.fetch(QUERIES["lock_seasons"], seasons)}


def _overtaken() -> UnavailableError:
    # Between reading the season of a match and locking that season, another consumer scheduled the match in another
    # one.
    return UnavailableError("a match was scheduled in another season meanwhile; the batch is repeated")


def _cause(change: Change) -> Cause:
    assert change.folded.cause is not None  # it changed
    return change.folded.cause


def _row(match: Match) -> tuple[Any, ...]:
    """Return a row in the order of `MATCH_COLUMNS`."""
    score, result = match.score_by, match.result_by
    return (
        match.match_id,
        match.season,
        match.round,
        to_datetime(match.kickoff_ms),
        match.time_unknown,
        str(match.status),
        match.home,
        match.away,
        match.home_goals,
        match.away_goals,
        match.minute,
        None if match.finalized_ms is None else to_datetime(match.finalized_ms),
        match.schedule_by.arrived_ms,
        match.schedule_by.position,
        None if score is None else score.arrived_ms,
        None if score is None else score.position,
        None if result is None else result.arrived_ms,
        None if result is None else result.position,
        *(match.extra_time or _NO_GOALS),
        *(match.penalties or _NO_GOALS),
    )
