"""The rules for events of the leagues beyond their schema: every bad value has a reason and a field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.topics import TOPICS
from highwater.streams.checks import ID_BYTES_MAX, TS_MS_MAX, TS_MS_MIN
from highwater.streams.league.rules import TIE_BREAKS
from highwater.streams.league.validation import (
    AD_BYTES_MAX,
    COMMENT_BYTES_MAX,
    GOALS_MAX,
    MINUTE_MAX,
    NAME_BYTES_MAX,
    REASON_BYTES_MAX,
    RULES_MAX,
)
from highwater.streams.validation import check_event

GOOD: dict[str, dict[str, Any]] = {
    "league.match-scheduled": {
        "match_id": "m", "season": "s", "round": "r", "kickoff": 0, "home": "a", "away": "b", "time_unknown": False,
        "status": None,
    },
    "league.match-updated": {"match_id": "m", "season": "s", "home_goals": 0, "away_goals": 0, "minute": None},
    "league.match-finalized": {
        "match_id": "m", "season": "s", "home_goals": 0, "away_goals": 0, "finalized_at": 0, "home_goals_extra_time": 999,
        "away_goals_extra_time": 999, "home_penalties": 4, "away_penalties": 2,
    },
    "league.vote-cast": {"match_id": "m", "user_id": "u", "choice": "home", "ts": 0},
    "league.prediction-made": {"match_id": "m", "user_id": "u", "home_goals": 0, "away_goals": 0, "ts": 0},
    "league.comment-posted": {"match_id": "m", "user_id": "u", "text": "t", "ts": 0},
    "league.ad-changed": {"ad_id": "a", "deleted": False, "payload": "{}", "ts": 0},
    "league.rules-changed": {
        "season": "s", "deductions": [{"team": "a", "points": 1, "reason": "r"}], "tie_breaks": [], "withdrawn": [],
        "rounds_counted": [], "rounds_not_counted": [],
    },
}  # fmt: skip

_IDS: list[tuple[Any, str]] = [("", "empty_id"), ("x" * (ID_BYTES_MAX + 1), "too_long"), ("a\nb", "control_character")]
_NAMES: list[tuple[Any, str]] = [
    ("", "empty_id"), (" ", "empty_id"), ("x" * (NAME_BYTES_MAX + 1), "too_long"), ("a\x00b", "control_character"),
]  # fmt: skip
_GOALS: list[tuple[Any, str]] = [(-1, "bad_score"), (GOALS_MAX + 1, "bad_score"), (2**31 - 1, "bad_score")]
_TIMES: list[tuple[Any, str]] = [(TS_MS_MIN - 1, "time_out_of_range"), (TS_MS_MAX + 1, "time_out_of_range")]
BAD: dict[str, list[tuple[Any, str]]] = {
    "match_id": _IDS,
    "user_id": _IDS,
    "ad_id": _IDS,
    "season": _NAMES,
    "round": _NAMES,
    "home": _NAMES,
    "away": [*_NAMES, ("a", "same_team")],
    "ts": _TIMES,
    "kickoff": _TIMES,
    "finalized_at": _TIMES,
    "home_goals": _GOALS,
    "away_goals": _GOALS,
    "home_goals_extra_time": [*_GOALS, (None, "bad_score")],
    "away_goals_extra_time": [*_GOALS, (None, "bad_score")],
    "home_penalties": [*_GOALS, (None, "bad_score"), (2, "bad_score")],
    "away_penalties": [*_GOALS, (None, "bad_score")],
    "minute": [(-1, "bad_minute"), (MINUTE_MAX + 1, "bad_minute")],
    "status": [("", "bad_status"), ("live", "bad_status"), ("Scheduled", "bad_status")],
    "deductions": [
        ([{"team": "", "points": 1, "reason": "r"}], "empty_id"), ([{"team": "a", "points": 0, "reason": "r"}], "bad_points"),
        ([{"team": "a", "points": 1000, "reason": "r"}], "bad_points"),
        ([{"team": "a", "points": 1, "reason": " "}], "empty_text"),
        ([{"team": "a", "points": 1, "reason": "r" * (REASON_BYTES_MAX + 1)}], "too_long"),
    ],
    "withdrawn": [([{"team": "a", "reason": ""}], "empty_text"), ([{"team": "a\n", "reason": "r"}], "control_character")],
    "tie_breaks": [(["points"], "bad_tie_break"), (["won", "won"], "repeated")],
    "rounds_counted": [([""], "empty_id"), (["r"] * (RULES_MAX + 1), "too_many")],
    "rounds_not_counted": [(["a\x00b"], "control_character")],
    "choice": [("", "bad_choice"), ("Home", "bad_choice"), ("1", "bad_choice")],
    "text": [
        ("", "empty_text"), (" \n", "empty_text"), ("x" * (COMMENT_BYTES_MAX + 1), "too_long"),
        ("a\x00b", "control_character"),
    ],
    "payload": [
        ("", "not_json"), ("{", "not_json"), ("NaN", "not_json"), ('"' + "x" * AD_BYTES_MAX + '"', "too_long"),
        ('"a\x00b"', "control_character"),
    ],
}  # fmt: skip
EDGES: dict[str, list[Any]] = {
    "match_id": ["x" * ID_BYTES_MAX, "a/b", "матч"],
    "season": ["x" * NAME_BYTES_MAX, "2018-19_en.1"],
    "home": ["1. FC Köln", "São Paulo"],
    "kickoff": [TS_MS_MIN, -1, TS_MS_MAX],
    "ts": [TS_MS_MIN, TS_MS_MAX],
    "home_goals": [0, 149, GOALS_MAX],
    "home_goals_extra_time": [0, GOALS_MAX],
    "away_penalties": [0, GOALS_MAX],
    "minute": [None, 0, 120, MINUTE_MAX],
    "status": [None, "scheduled", "postponed", "cancelled"],
    "deductions": [[], [{"team": "a", "points": 999, "reason": "r"}] * 2],
    "tie_breaks": [list(TIE_BREAKS)],
    "rounds_counted": [["r"] * RULES_MAX],
    "choice": ["home", "draw", "away"],
    "text": ["x" * COMMENT_BYTES_MAX, "two\nlines", "👏"],
    "payload": ["{}", "[]", "null", '"x"', '"' + "x" * (AD_BYTES_MAX - 2) + '"'],
}


def refusal(topic: str, event: dict[str, Any]) -> tuple[str, str | None] | None:
    """Reason and field with which an event is refused; None when it is taken."""
    try:
        check_event(topic, event, embedding_dimensions=4)
    except InvalidEventError as error:
        return error.reason, error.field
    return None


def cases(values: dict[str, list[Any]]) -> list[tuple[str, str, Any]]:
    """Topic, field and value, for every topic that has the field."""
    return [(topic, field, value) for topic, good in GOOD.items() for field in good for value in values.get(field, [])]


def test_every_topic_and_field_is_covered():
    """The good events are those of the catalogue; a field without a bad value is one that any value is good for."""
    assert set(GOOD) == {name for name, topic in TOPICS.items() if topic.outsider and name.startswith("league.")}
    assert {"time_unknown", "deleted"} == {field for good in GOOD.values() for field in good} - set(BAD)


@pytest.mark.parametrize("topic", GOOD)
def test_a_good_event_is_taken(topic: str):
    """Each topic's plainest event passes."""
    assert refusal(topic, GOOD[topic]) is None


@pytest.mark.parametrize(("topic", "field", "case"), cases(BAD))
def test_a_bad_value_is_refused_with_its_field(topic: str, field: str, case: tuple[Any, str]):
    """One bad value in an otherwise good event is refused by reason, and the field is named."""
    value, reason = case
    assert (reason, field) == refusal(topic, {**GOOD[topic], field: value})


@pytest.mark.parametrize(("topic", "field", "value"), cases(EDGES))
def test_the_last_good_value_is_taken(topic: str, field: str, value: Any):
    """Limits are inclusive, and odd but good values pass."""
    assert refusal(topic, {**GOOD[topic], field: value}) is None


def test_extra_time_contains_regular_time():
    """The goals after it are not fewer; a result may have neither extra time nor penalties, or only one of the two."""
    topic = "league.match-finalized"
    assert refusal(topic, {**GOOD[topic], "home_goals": 1, "home_goals_extra_time": 0}) == (
        "bad_score",
        "home_goals_extra_time",
    )
    without = {name: value for name, value in GOOD[topic].items() if "extra_time" not in name}
    assert refusal(topic, without) is None
    assert refusal(topic, {**GOOD[topic], "home_penalties": None, "away_penalties": None}) is None


def test_a_round_is_declared_one_way():
    """It counts or does not count."""
    event = {**GOOD["league.rules-changed"], "rounds_counted": ["r"], "rounds_not_counted": ["q", "r"]}
    assert refusal("league.rules-changed", event) == ("contradiction", "rounds_not_counted")


def test_what_is_taken_away_needs_no_payload():
    """The payload of a deleted advertisement is not read: nothing of it is kept."""
    event = {**GOOD["league.ad-changed"], "deleted": True}
    assert [refusal("league.ad-changed", {**event, "payload": payload}) for payload in ("", "{", "\x00")] == [None] * 3


def test_the_first_fault_is_named():
    """Of several faults the one of the first field is reported, for any order in the event."""
    event = {"choice": "x", "ts": TS_MS_MAX + 1, "user_id": "", "match_id": ""}
    assert refusal("league.vote-cast", event) == ("empty_id", "match_id")


@given(st.text(max_size=300), st.text(max_size=40), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_any_event_has_an_outcome(name: str, text: str, moment: int, number: int):
    """Any event that the schema permits is accepted or refused with a reason; PostgreSQL can store every accepted one."""
    moments = dict.fromkeys(("ts", "kickoff", "finalized_at"), moment)
    numbers = dict.fromkeys(("home_goals", "away_goals", "minute"), number)
    for topic, good in GOOD.items():
        named = {field: name for field, value in good.items() if isinstance(value, str)}
        told = {**named, "text": text, "payload": text, **moments, **numbers}
        event = {field: told.get(field, value) for field, value in good.items()}
        if refusal(topic, event) is None:
            assert [field for field, value in event.items() if isinstance(value, str) and "\x00" in value] == []
            assert [at for at in (event.get(field, 0) for field in moments) if not TS_MS_MIN <= at <= TS_MS_MAX] == []
