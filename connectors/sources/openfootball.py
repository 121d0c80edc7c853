"""A season of openfootball (openfootball/football.json, CC0) as events: its matches, and their results.

Invariant: an event depends only on the file and the options, so that importing a file again publishes the same events
and changes nothing; the id of a match stays when its date moves. A bad entry is a fault with its number and affects no
other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, NamedTuple

import orjson

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.league import MatchFinalized, MatchScheduled
from highwater.streams.league.matches import Status
from highwater.streams.league.validation import check_league_event

SCHEDULED, FINALIZED = "league.match-scheduled", "league.match-finalized"
# From kickoff to the result: two halves, the break and added time. The files do not contain the end of a match.
MATCH_MS = 2 * 3_600_000
# If only the day is known, its noon: in no time zone does it fall on another day.
UNKNOWN_TIME = time(12, 0)

_BOM = b"\xef\xbb\xbf"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The form of a time: `20:00`, in newer files with the zone of the ground, `13:00 UTC-6`.
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?:\s*UTC\s*([+-])(\d{1,2})(?::(\d{2}))?)?", re.ASCII)
_STATUSES = {"postponed": Status.POSTPONED, "cancelled": Status.CANCELLED, "canceled": Status.CANCELLED}


class Fault(NamedTuple):
    """An invalid entry; `number` counts the entries of the file from 1."""

    number: int
    why: str


class Fixture(NamedTuple):
    """A match of the file: its time, and its result if that counts."""

    scheduled: MatchScheduled
    finalized: MatchFinalized | None


@dataclass(frozen=True, slots=True)
class Season:
    """The contents of a file. `repeated` are the numbers of entries for a match that came before them."""

    entries: int
    fixtures: tuple[Fixture, ...]
    faults: tuple[Fault, ...]
    repeated: tuple[int, ...]

    def schedule(self) -> Iterator[tuple[str, MatchScheduled]]:
        """Yield every match with its topic."""
        return ((SCHEDULED, fixture.scheduled) for fixture in self.fixtures)

    def results(self) -> Iterator[tuple[str, MatchFinalized]]:
        """Yield every result with its topic."""
        return ((FINALIZED, fixture.finalized) for fixture in self.fixtures if fixture.finalized is not None)


def match_id_of(season: str, home: str, away: str, matchday: str) -> str:
    """Return the id of a match, 20 hex digits; the date is not part of it."""
    return hashlib.sha256(f"{season}|{home}|{away}|{matchday}".encode("utf-8", "surrogatepass")).hexdigest()[:20]


def parse_season(data: bytes, season: str, *, zone: tzinfo = UTC, as_of_ms: int | None = None) -> Season:
    """Parse the matches of a file.

    Args:
        data: the file, JSON of openfootball: `{"matches": [...]}`, or as older ones `{"rounds": [{"name",
            "matches"}]}`.
        season: id of the season; a part of the ids of its matches.
        zone: the time zone of the file's local times.
        as_of_ms: only results of matches that had ended by then count, in ms since 1970; None = all.

    Raises:
        InvalidEventError: it is not JSON, or has no matches.
    """
    try:
        document = orjson.loads(data.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        raise InvalidEventError("not_json", f"not JSON: {error}") from error
    found: dict[str, Fixture] = {}
    faults: list[Fault] = []
    repeated: list[int] = []
    number = 0
    for number, (matchday, entry) in enumerate(_entries(document), start=1):
        try:
            fixture = _fixture(entry, season, matchday, zone, as_of_ms)
        except InvalidEventError as error:
            faults.append(Fault(number, f"{error} [{error.reason}]"))
            continue
        match_id = fixture.scheduled["match_id"]
        if match_id in found:
            repeated.append(number)
        found[match_id] = fixture
    if not number:
        raise InvalidEventError("no_matches", "no matches in it: neither `matches` nor `rounds` with `matches`")
    return Season(number, tuple(found.values()), tuple(faults), tuple(repeated))


def _entries(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every entry with its round; an invalid round yields one bad entry."""
    whole = document if isinstance(document, dict) else {}
    matches, rounds = whole.get("matches"), whole.get("rounds")
    for match in matches if isinstance(matches, list) else ():
        yield (match.get("round") if isinstance(match, dict) else None), match
    for matchday in rounds if isinstance(rounds, list) else ():
        inner = matchday.get("matches") if isinstance(matchday, dict) else None
        if not isinstance(inner, list):
            yield None, matchday
            continue
        for match in inner:
            own = match.get("round") if isinstance(match, dict) else None
            yield (matchday.get("name") if own is None else own), match


def _fixture(entry: Any, season: str, matchday: Any, zone: tzinfo, as_of_ms: int | None) -> Fixture:
    if not isinstance(entry, dict):
        raise InvalidEventError("not_an_object", "it is not an object")
    home, away = _team(entry, "team1"), _team(entry, "team2")
    matchday = _told(matchday, "round")
    kickoff, time_unknown = _kickoff(entry, zone)
    match_id = match_id_of(season, home, away, matchday)
    scheduled: MatchScheduled = {
        "match_id": match_id,
        "season": season,
        "round": matchday,
        "kickoff": kickoff,
        "home": home,
        "away": away,
        "time_unknown": time_unknown,
        "status": _status(entry),
    }
    check_league_event(SCHEDULED, scheduled)
    goals = _goals(entry)
    if goals is None:
        return Fixture(scheduled, None)
    finalized: MatchFinalized = {
        "match_id": match_id,
        "season": season,
        "home_goals": goals[0],
        "away_goals": goals[1],
        "finalized_at": kickoff + MATCH_MS,
    }
    check_league_event(FINALIZED, finalized)
    has_ended = as_of_ms is None or finalized["finalized_at"] <= as_of_ms
    return Fixture(scheduled, finalized if has_ended else None)


def _told(value: Any, name: str) -> str:
    """Return a required text.

    Raises:
        InvalidEventError: it is missing.
    """
    if value is None or value == "":
        raise InvalidEventError("missing_field", f"no `{name}`", field=name)
    if not isinstance(value, str):
        raise InvalidEventError("wrong_type", f"`{name}` is not a string", field=name)
    return value


def _team(entry: Mapping[str, Any], name: str) -> str:
    """Return the name of a team; older files have an object with codes beside it."""
    team = entry.get(name)
    return _told(team.get("name") if isinstance(team, dict) else team, name)


def _kickoff(entry: Mapping[str, Any], zone: tzinfo) -> tuple[int, bool]:
    """Return the kickoff in ms since 1970, and whether only the day is known."""
    told_day, told_time = _told(entry.get("date"), "date"), entry.get("time")
    try:
        day = date.fromisoformat(told_day)
    except ValueError as error:
        raise InvalidEventError("not_a_time", f"`date` is {told_day[:40]!r}, not a date", field="date") from error
    if told_time is None or told_time == "":
        return _ms(datetime.combine(day, UNKNOWN_TIME, zone)), True
    try:
        return _ms(datetime.combine(day, _clock_time(told_time, zone))), False
    except ValueError as error:
        raise InvalidEventError("not_a_time", f"`time` is {str(told_time)[:40]!r}, not a time", field="time") from error


def _clock_time(value: Any, zone: tzinfo) -> time:
    """Parse a time of day in its own zone, else in `zone`."""
    parts = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if parts is None:
        raise ValueError("neither HH:MM nor HH:MM UTC+H")
    if parts[3] is not None:
        offset = timedelta(hours=int(parts[4]), minutes=int(parts[5] or 0))
        zone = timezone(-offset if parts[3] == "-" else offset)
    return time(int(parts[1]), int(parts[2]), tzinfo=zone)


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _status(entry: Mapping[str, Any]) -> str | None:
    """Return the entry's status if the schedule has it; played, live and the like follow from the result."""
    told = entry.get("status")
    if told is None:
        return None
    if not isinstance(told, str):
        raise InvalidEventError("wrong_type", "`status` is not a string", field="status")
    return _STATUSES.get(told.strip().casefold())


def _goals(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the score at full time, None without one: `score.ft`, in older files `score` itself or `score1`, `score2`."""
    score = entry.get("score")
    if score is None and "score1" in entry:
        score = [entry["score1"], entry.get("score2")]
    told = score.get("ft") if isinstance(score, dict) else score
    if told is None or told in ([], [None, None]):
        return None
    if not isinstance(told, list) or len(told) != 2 or not all(type(goals) is int for goals in told):
        raise InvalidEventError("bad_score", "the score is not a pair of whole numbers", field="score")
    return told[0], told[1]
