"""A season of openfootball (openfootball/football.json, CC0) as events: its matches, and their results.

Invariant: an event depends only on the file and the options, so that importing a file again publishes the same events
and changes nothing; the id of a match stays when its date moves. A bad entry is a fault with its number and affects no
other.
"""

from __future__ import annotations

import hashlib
import re
import zoneinfo
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
# The form of a time: `20:00`, in newer files with the zone of the ground, `13:00 UTC-6`, or `20:45 CET`.
_TIME = re.compile(
    r"(\d{1,2}):(\d{2})(?:\s*(?:(?:UTC|GMT)\s*([+-])(\d{1,2})(?::(\d{2}))?|\(?([A-Z]{1,5})\)?))?", re.ASCII
)
# A name of a zone with summer time means the clock there: schedules call it CET in summer, too. Names that mean several
# zones (BST, CST, IST) are refused.
_ZONES_OF_PLACES = {"WET": "Europe/Lisbon", "CET": "Europe/Brussels", "EET": "Europe/Athens"}
_ZONES_OF_HOURS = {"Z": 0, "UTC": 0, "GMT": 0, "WEST": 1, "CEST": 2, "EEST": 3, "MSK": 3, "JST": 9, "KST": 9}
# What a status means for the schedule, and whether the score beside it is a result. A match that was abandoned is
# played again or awarded, so it is postponed until then.
_STATUSES: Mapping[str, tuple[Status | None, bool]] = {
    **dict.fromkeys(
        ("", "finished", "played", "final", "full time", "ft", "after extra time", "aet", "after penalties", "pen", "awarded",
         "walkover"),
        (None, True),
    ),
    **dict.fromkeys(("scheduled", "timed", "not started", "ns", "tbd"), (None, False)),
    **dict.fromkeys(("live", "in play", "paused", "half time", "ht", "extra time", "penalty shootout"), (None, False)),
    **dict.fromkeys(("postponed", "delayed", "abandoned", "suspended", "interrupted"), (Status.POSTPONED, False)),
    **dict.fromkeys(("cancelled", "canceled", "annulled", "void"), (Status.CANCELLED, False)),
}  # fmt: skip


class Fault(NamedTuple):
    """An entry and its fault; `number` counts the entries of the file from 1."""

    number: int
    why: str


class Fixture(NamedTuple):
    """A match of the file: its time, and its result if that counts; `left_out` says what of its score is not published."""

    scheduled: MatchScheduled
    finalized: MatchFinalized | None
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Season:
    """The contents of a file. `repeated` are the numbers of entries for a match that came before them, `left_out` those of
    entries whose score is not published or not completely, with the reason.
    """

    entries: int
    fixtures: tuple[Fixture, ...]
    faults: tuple[Fault, ...]
    repeated: tuple[int, ...]
    left_out: tuple[Fault, ...]

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
    left_out: list[Fault] = []
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
        if fixture.left_out:
            left_out.append(Fault(number, fixture.left_out))
        found[match_id] = fixture
    if not number:
        raise InvalidEventError("no_matches", "no matches in it: neither `matches` nor `rounds` with `matches`")
    return Season(number, tuple(found.values()), tuple(faults), tuple(repeated), tuple(left_out))


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
    status, has_result = _status(entry)
    match_id = match_id_of(season, home, away, matchday)
    scheduled: MatchScheduled = {
        "match_id": match_id,
        "season": season,
        "round": matchday,
        "kickoff": kickoff,
        "home": home,
        "away": away,
        "time_unknown": time_unknown,
        "status": status,
    }
    check_league_event(SCHEDULED, scheduled)
    goals, extra_time, penalties = (_goals(entry, part) for part in ("ft", "et", "p"))
    if goals is None or not has_result:
        return Fixture(scheduled, None, _why_without_result(goals or extra_time or penalties, has_result=has_result))
    is_level = penalties is not None and penalties[0] == penalties[1]
    if is_level:  # files have such mistakes; the result is one without them
        penalties = None
    no_goals = (None, None)
    finalized: MatchFinalized = {
        "match_id": match_id,
        "season": season,
        "home_goals": goals[0],
        "away_goals": goals[1],
        "finalized_at": kickoff + MATCH_MS,
        "home_goals_extra_time": (extra_time or no_goals)[0],
        "away_goals_extra_time": (extra_time or no_goals)[1],
        "home_penalties": (penalties or no_goals)[0],
        "away_penalties": (penalties or no_goals)[1],
    }
    check_league_event(FINALIZED, finalized)
    has_ended = as_of_ms is None or finalized["finalized_at"] <= as_of_ms
    left_out = "its penalty shoot-out has no winner and is not published" if is_level and has_ended else ""
    return Fixture(scheduled, finalized if has_ended else None, left_out)


def _why_without_result(score: tuple[int, int] | None, *, has_result: bool) -> str:
    if score is None:
        return ""
    if has_result:
        return "the score after regular time (`ft`) is missing, so no result is published"
    return "by its status its score is not a result, and is not published"


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
        raise InvalidEventError("not_a_time", f"`time` is {str(told_time)[:40]!r}: {error}", field="time") from error


def _clock_time(value: Any, zone: tzinfo) -> time:
    """Parse a time of day in its own zone, else in `zone`."""
    parts = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if parts is None:
        raise ValueError("neither HH:MM, HH:MM UTC+H nor HH:MM with the name of a zone")
    if parts[3] is not None:
        offset = timedelta(hours=int(parts[4]), minutes=int(parts[5] or 0))
        zone = timezone(-offset if parts[3] == "-" else offset)
    elif parts[6] is not None:
        zone = _zone_named(parts[6])
    return time(int(parts[1]), int(parts[2]), tzinfo=zone)


def _zone_named(name: str) -> tzinfo:
    if name in _ZONES_OF_HOURS:
        return timezone(timedelta(hours=_ZONES_OF_HOURS[name]))
    if name not in _ZONES_OF_PLACES:
        known = ", ".join((*_ZONES_OF_HOURS, *_ZONES_OF_PLACES))
        raise ValueError(f"the zone {name} is none of {known}; UTC+H names any other")
    try:
        return zoneinfo.ZoneInfo(_ZONES_OF_PLACES[name])
    except (zoneinfo.ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"this machine has no database of time zones, which {name} needs") from error


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _status(entry: Mapping[str, Any]) -> tuple[Status | None, bool]:
    """Return the entry's status if the schedule has it, and whether its score is a result."""
    told = entry.get("status")
    if told is None:
        return None, True
    if not isinstance(told, str):
        raise InvalidEventError("wrong_type", "`status` is not a string", field="status")
    name = re.sub(r"[\s_-]+", " ", told).strip().casefold()
    if name not in _STATUSES:
        known = ", ".join(filter(None, _STATUSES))
        raise InvalidEventError("bad_status", f"`status` is {told[:40]!r}, none of {known}", field="status")
    return _STATUSES[name]


def _goals(entry: Mapping[str, Any], part: str) -> tuple[int, int] | None:
    """Return the score of a part, None without one: `ft` after regular time, `et` after extra time, `p` of the shoot-out.

    They are in `score`. In older files `score` may itself be that of `ft`, or they are `score1` and `score2`,
    `score1et`, `score1p`.
    """
    score, suffix = entry.get("score"), "" if part == "ft" else part
    if score is None and f"score1{suffix}" in entry:
        told: Any = [entry[f"score1{suffix}"], entry.get(f"score2{suffix}")]
    elif isinstance(score, dict):
        told = score.get(part)
    else:
        told = score if part == "ft" else None
    if told is None or told in ([], [None, None]):
        return None
    if not isinstance(told, list) or len(told) != 2 or not all(type(goals) is int for goals in told):
        raise InvalidEventError("bad_score", "the score is not a pair of whole numbers", field="score")
    return told[0], told[1]
