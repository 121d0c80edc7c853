"""Rules for events of the leagues beyond their schema, the same at the API, in `publish` and in the sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.league import (
    AD_CHANGED,
    MATCH_FINALIZED,
    MATCH_SCHEDULED,
    RULES_CHANGED,
    AdChanged,
    MatchFinalized,
    MatchScheduled,
    RulesChanged,
)
from highwater.streams.checks import check_fields, check_id, check_name, check_text, check_time
from highwater.streams.league.matches import Status, extra_time_of, penalties_of
from highwater.streams.league.rules import TIE_BREAKS

# Teams, seasons and rounds are shown and are parts of keys.
NAME_BYTES_MAX = 256
# Far above any score ever played (149:0); it fits an int of Avro and PostgreSQL.
GOALS_MAX = 999
MINUTE_MAX = 999
COMMENT_BYTES_MAX = 8 << 10
AD_BYTES_MAX = 64 << 10
REASON_BYTES_MAX = 1 << 10
POINTS_MAX = 999
# Of each list of a season's rules: more than a season has rounds or teams with a deduction.
RULES_MAX = 500
CHOICES = ("home", "draw", "away")


def _check_title(name: str, value: str) -> None:
    check_name(name, value, NAME_BYTES_MAX)


def _check_goals(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= GOALS_MAX:
        raise InvalidEventError("bad_score", f"{name} is {value}, not 0 to {GOALS_MAX}", field=name)


def _check_minute(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= MINUTE_MAX:
        raise InvalidEventError("bad_minute", f"{name} is {value}, not 0 to {MINUTE_MAX}", field=name)


def _check_status(name: str, value: str | None) -> None:
    if value is not None and value not in tuple(Status):
        raise InvalidEventError("bad_status", f"{name} is none of {', '.join(Status)}", field=name)


def _check_choice(name: str, value: str) -> None:
    if value not in CHOICES:
        raise InvalidEventError("bad_choice", f"{name} is none of {', '.join(CHOICES)}", field=name)


def _check_comment(name: str, value: str) -> None:
    check_text(name, value, COMMENT_BYTES_MAX)
    if not value.strip():
        raise InvalidEventError("empty_text", f"{name} is empty", field=name)


def _check_teams(event: MatchScheduled) -> None:
    if event["home"] == event["away"]:
        raise InvalidEventError("same_team", "a team does not play itself", field="away")


def _check_result(event: MatchFinalized) -> None:
    for pair in (("home_goals_extra_time", "away_goals_extra_time"), ("home_penalties", "away_penalties")):
        missing = [name for name in pair if event.get(name) is None]
        if len(missing) == 1:
            raise InvalidEventError("bad_score", f"{missing[0]} is missing", field=missing[0])
    extra_time, penalties = extra_time_of(event), penalties_of(event)
    if extra_time is not None and (extra_time[0] < event["home_goals"] or extra_time[1] < event["away_goals"]):
        text = "the goals after extra time contain those of regular time, and are not fewer"
        raise InvalidEventError("bad_score", text, field="home_goals_extra_time")
    if penalties is not None and penalties[0] == penalties[1]:
        raise InvalidEventError("bad_score", "a penalty shoot-out has a winner", field="home_penalties")


def _check_rules(event: RulesChanged) -> None:
    for field, value in event.items():
        if isinstance(value, list) and len(value) > RULES_MAX:
            raise InvalidEventError("too_many", f"{field} has more than {RULES_MAX} entries", field=field)
    for deduction in event["deductions"]:
        _check_team_rule("deductions", deduction["team"], deduction["reason"])
        if not 1 <= deduction["points"] <= POINTS_MAX:
            text = f"points of deductions is {deduction['points']}, not 1 to {POINTS_MAX}"
            raise InvalidEventError("bad_points", text, field="deductions")
    for withdrawal in event["withdrawn"]:
        _check_team_rule("withdrawn", withdrawal["team"], withdrawal["reason"])
    for matchday in event["rounds_counted"]:
        _check_title("rounds_counted", matchday)
    for matchday in event["rounds_not_counted"]:
        _check_title("rounds_not_counted", matchday)
    _check_tie_breaks(event["tie_breaks"])
    both = sorted(set(event["rounds_counted"]) & set(event["rounds_not_counted"]))
    if both:
        raise InvalidEventError("contradiction", f"{both[0]!r} is also in rounds_counted", field="rounds_not_counted")


def _check_team_rule(name: str, team: str, reason: str) -> None:
    _check_title(name, team)
    check_text(name, reason, REASON_BYTES_MAX)
    if not reason.strip():
        raise InvalidEventError("empty_text", f"reason of {name} is empty", field=name)


def _check_tie_breaks(names: Sequence[str]) -> None:
    for name in names:
        if name not in TIE_BREAKS:
            text = f"{name[:40]!r} in tie_breaks is none of {', '.join(TIE_BREAKS)}"
            raise InvalidEventError("bad_tie_break", text, field="tie_breaks")
    if len(set(names)) < len(names):
        raise InvalidEventError("repeated", "tie_breaks names one twice", field="tie_breaks")


def _check_ad(event: AdChanged) -> None:
    if event["deleted"]:
        return  # none of its contents is kept
    check_text("payload", event["payload"], AD_BYTES_MAX)
    try:
        orjson.loads(event["payload"])
    except orjson.JSONDecodeError as error:
        raise InvalidEventError("not_json", f"payload is not JSON: {error}", field="payload") from error


# Checked in this order, so that of several faults the first field's is named. A field means the same in every topic.
_FIELDS: Mapping[str, Callable[[str, Any], None]] = {
    "match_id": check_id,
    "user_id": check_id,
    "ad_id": check_id,
    "season": _check_title,
    "round": _check_title,
    "home": _check_title,
    "away": _check_title,
    "ts": check_time,
    "kickoff": check_time,
    "finalized_at": check_time,
    "home_goals": _check_goals,
    "away_goals": _check_goals,
    "home_goals_extra_time": _check_goals,
    "away_goals_extra_time": _check_goals,
    "home_penalties": _check_goals,
    "away_penalties": _check_goals,
    "minute": _check_minute,
    "status": _check_status,
    "choice": _check_choice,
    "text": _check_comment,
}
# Rules about several fields at once.
_TOPICS: Mapping[str, Callable[[Any], None]] = {
    MATCH_SCHEDULED: _check_teams,
    MATCH_FINALIZED: _check_result,
    AD_CHANGED: _check_ad,
    RULES_CHANGED: _check_rules,
}


def check_league_event(topic: str, event: Mapping[str, Any]) -> None:
    """Check a decoded event of a topic of the leagues; times in ms since 1970.

    Raises:
        InvalidEventError: names the field at fault and a machine-readable reason.
    """
    check_fields(_FIELDS, event)
    check_whole = _TOPICS.get(topic)
    if check_whole is not None:
        check_whole(event)
