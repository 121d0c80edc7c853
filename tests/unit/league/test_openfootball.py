"""Files of openfootball as events: both forms, missing parts, errors, and stable parts."""

from __future__ import annotations

import gzip
import hashlib
import json
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.api.cli.sample import SEASON, SEASON_FILE
from highwater.connectors.sources.openfootball import FINALIZED, MATCH_MS, SCHEDULED, Season, parse_season
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import ms_from_iso
from highwater.schemas.errors import InvalidEventError
from highwater.streams.league.validation import check_league_event

S = "2018-19_xx.1"
CODEC = Codec({SCHEDULED: 1, FINALIZED: 2})
ARSENAL_CHELSEA = {"round": "Matchday 1", "date": "2018-08-18", "time": "17:30", "team1": "Arsenal", "team2": "Chelsea"}


def entry(**told: Any) -> dict[str, Any]:
    """A match with other fields; None takes a field away."""
    return {name: value for name, value in {**ARSENAL_CHELSEA, **told}.items() if value is not None}


def parsed(*entries: Any, **options: Any) -> Season:
    """A file of these matches."""
    return parse_season(json.dumps({"name": "a league", "matches": entries}).encode(), S, **options)


def only(*entries: Any, **options: Any) -> Any:
    """The one match of a file without faults."""
    found = parsed(*entries, **options)
    assert found.faults == ()
    (fixture,) = found.fixtures
    return fixture


def test_a_played_match_is_scheduled_and_final():
    """Both events carry the id of the contract; the result comes two hours after kickoff."""
    fixture = only(entry(score={"ht": [1, 0], "ft": [2, 1]}))
    match_id = hashlib.sha256(b"2018-19_xx.1|Arsenal|Chelsea|Matchday 1").hexdigest()[:20]
    kickoff = ms_from_iso("2018-08-18T17:30:00Z")
    assert fixture.scheduled == {
        "match_id": match_id, "season": S, "round": "Matchday 1", "kickoff": kickoff, "home": "Arsenal", "away": "Chelsea",
        "time_unknown": False, "status": None,
    }  # fmt: skip
    assert fixture.finalized == {
        "match_id": match_id, "season": S, "home_goals": 2, "away_goals": 1, "finalized_at": kickoff + 7_200_000,
        "home_goals_extra_time": None, "away_goals_extra_time": None, "home_penalties": None, "away_penalties": None,
    }  # fmt: skip


def test_another_date_is_the_same_match():
    """A match that moves keeps its id."""
    moved = only(entry(date="2019-02-01", time=None)).scheduled
    assert only(entry()).scheduled["match_id"] == moved["match_id"]


@pytest.mark.parametrize("score", [None, {}, {"ht": [0, 0]}, {"ft": None}, {"ft": []}, [], [None, None]])
def test_without_a_full_time_score_a_match_is_only_scheduled(score):
    """However a file says that there is no score, there is no result."""
    told = {**entry(), "score": score}
    assert only(told).finalized is None


@pytest.mark.parametrize("told", [{"score": {"ft": [0, 0]}}, {"score": [0, 0]}, {"score1": 0, "score2": 0}])
def test_a_goalless_match_is_a_result(told):
    """Nil to nil is a result in every form of score, older files' too."""
    result = only(entry(**told)).finalized
    assert (result["home_goals"], result["away_goals"]) == (0, 0)


@pytest.mark.parametrize(
    "told",
    [
        {"score": {"p": [4, 2], "et": [3, 3], "ft": [2, 2], "ht": [2, 0]}},
        {"score1": 2, "score2": 2, "score1et": 3, "score2et": 3, "score1p": 4, "score2p": 2},
    ],
)
def test_extra_time_and_penalties_are_read(told):
    """Beside the score after regular time, in both forms of files."""
    result = only(entry(**told)).finalized
    assert [result[name] for name in ("home_goals", "home_goals_extra_time", "home_penalties")] == [2, 3, 4]
    assert [result[name] for name in ("away_goals", "away_goals_extra_time", "away_penalties")] == [2, 3, 2]


@pytest.mark.parametrize(
    ("score", "goals", "why"),
    [
        ({"et": [1, 1], "p": [2, 4]}, None, "`ft`"),
        ({"ft": [0, 1], "et": [0, 1], "p": [4, 4]}, (0, 1), "shoot-out"),
    ],
)
def test_a_score_that_cannot_be_is_named(score, goals, why):
    """Real files have both: what is known of the match is published, and the rest is reported with its number."""
    found = parsed(entry(score=score))
    result = found.fixtures[0].finalized
    assert goals == (None if result is None else (result["home_goals"], result["away_goals"]))
    assert result is None or result["home_penalties"] is None
    ((number, reason),) = found.left_out
    assert (number, why in reason) == (1, True)


@pytest.mark.parametrize(
    ("told", "zone", "kickoff", "time_unknown"),
    [
        ({"time": "20:00"}, UTC, "2018-08-18T20:00Z", False),
        ({"time": "20:00"}, ZoneInfo("Europe/London"), "2018-08-18T19:00Z", False),
        ({"time": "20:00", "date": "2018-12-01"}, ZoneInfo("Europe/London"), "2018-12-01T20:00Z", False),
        ({"time": "13:00 UTC-6"}, ZoneInfo("Europe/London"), "2018-08-18T19:00Z", False),
        ({"time": "13:00 UTC+5:30"}, UTC, "2018-08-18T07:30Z", False),
        ({"time": "20:45 CET"}, UTC, "2018-08-18T18:45Z", False),
        ({"time": "20:45 CET", "date": "2018-12-01"}, UTC, "2018-12-01T19:45Z", False),
        ({"time": "20:45 (CEST)"}, ZoneInfo("Europe/London"), "2018-08-18T18:45Z", False),
        ({"time": "20:45 GMT"}, ZoneInfo("Europe/London"), "2018-08-18T20:45Z", False),
        ({"time": "20:45 GMT+2"}, UTC, "2018-08-18T18:45Z", False),
        ({"time": None}, UTC, "2018-08-18T12:00Z", True),
        ({"time": ""}, ZoneInfo("Pacific/Auckland"), "2018-08-18T00:00Z", True),
    ],
)
def test_kickoff_is_the_local_time_of_the_league(told, zone, kickoff, time_unknown):
    """A time is local to the league or says its own zone; without one it is noon there, and the event says so."""
    scheduled = only({**entry(), **told}, zone=zone).scheduled
    assert (scheduled["kickoff"], scheduled["time_unknown"]) == (ms_from_iso(kickoff), time_unknown)


@pytest.mark.parametrize(
    ("told", "status", "has_result"),
    [
        ("POSTPONED", "postponed", False),
        ("Cancelled", "cancelled", False),
        ("CANCELED", "cancelled", False),
        ("annulled", "cancelled", False),
        ("Abandoned", "postponed", False),
        ("SUSPENDED", "postponed", False),
        ("IN_PLAY", None, False),
        ("Half-time", None, False),
        ("TIMED", None, False),
        ("FINISHED", None, True),
        ("AWARDED", None, True),
        ("", None, True),
    ],
)
def test_a_status_decides_whether_a_score_is_a_result(told, status, has_result):
    """Any spelling is recognized; a score of a match that was not played to its end is not published."""
    found = parsed(entry(status=told, score={"ft": [1, 0]}))
    (fixture,) = found.fixtures
    assert [number for number, _ in found.left_out] == ([] if has_result else [1])
    assert (fixture.scheduled["status"], fixture.finalized is not None) == (status, has_result)


def test_rounds_of_older_files_are_read():
    """`rounds` with `matches` and teams as objects say the same as the newer form."""
    match = {"date": "2018-08-18", "time": "17:30", "team1": {"name": "Arsenal", "code": "ARS"},
             "team2": {"name": "Chelsea"}, "score1": 2, "score2": 3}  # fmt: skip
    old = parse_season(json.dumps({"rounds": [{"name": "Matchday 1", "matches": [match]}]}).encode(), S)
    assert old.fixtures == parsed(entry(score={"ft": [2, 3]})).fixtures


def test_of_a_repeated_match_the_last_entry_counts():
    """The same teams in the same round are one match, and the file's last word on it is published."""
    found = parsed(entry(score={"ft": [2, 1]}), entry(team1="Fulham"), entry(date="2018-09-01"))
    assert found.repeated == (3,)
    assert [fixture.scheduled["home"] for fixture in found.fixtures] == ["Arsenal", "Fulham"]
    assert found.fixtures[0].scheduled["kickoff"] == ms_from_iso("2018-09-01T17:30Z")
    assert list(found.results()) == []


def test_as_of_holds_back_results_alone():
    """A result counts from exactly two hours after kickoff; the schedule is still complete."""
    rows = [entry(score={"ft": [2, 1]}), entry(team1="Fulham", time="18:00", score={"ft": [0, 0]})]
    end_ms = ms_from_iso("2018-08-18T19:30Z")
    for as_of_ms, results in ((end_ms - 1, 0), (end_ms, 1), (end_ms + 1_800_000, 2), (None, 2)):
        found = parsed(*rows, as_of_ms=as_of_ms)
        assert (2, results) == (len(list(found.schedule())), len(list(found.results())))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (None, "not_an_object"),
        ("Arsenal - Chelsea", "not_an_object"),
        (entry(team1=None), "missing_field"),
        (entry(team2=""), "missing_field"),
        (entry(team1=7), "wrong_type"),
        (entry(team1="Chelsea"), "same_team"),
        (entry(round=None), "missing_field"),
        (entry(round="Match\nday"), "control_character"),
        (entry(team1="A" * 300), "too_long"),
        (entry(date=None), "missing_field"),
        (entry(date="2018-02-30"), "not_a_time"),
        (entry(date=20180818), "wrong_type"),
        (entry(time="25:00"), "not_a_time"),
        (entry(time="17:30 UTC+99"), "not_a_time"),
        (entry(time="evening"), "not_a_time"),
        (entry(time=17), "not_a_time"),
        (entry(date="9999-12-31", time="23:00", score=[1, 1]), "time_out_of_range"),
        (entry(time="20:45 CST"), "not_a_time"),
        (entry(status=3), "wrong_type"),
        (entry(status="PST"), "bad_status"),
        (entry(score={"ft": [-1, 0]}), "bad_score"),
        (entry(score={"ft": [1000, 0]}), "bad_score"),
        (entry(score={"ft": [1]}), "bad_score"),
        (entry(score={"ft": ["1", "0"]}), "bad_score"),
        (entry(score={"ft": [True, 0]}), "bad_score"),
        (entry(score={"ft": [1.5, 0]}), "bad_score"),
        (entry(score1=1), "bad_score"),
        (entry(score={"ft": [1, 1], "et": [1, 0]}), "bad_score"),
        (entry(score={"ft": [1, 1], "p": [4]}), "bad_score"),
        (entry(score=0), "bad_score"),
        (entry(score="2-1"), "bad_score"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_named_and_harms_no_other(bad, reason):
    """A fault carries the entry's number and reason; the entries around it are read, and nothing of the bad one is."""
    found = parsed(entry(), bad, entry(team1="Fulham", score=[1, 0]))
    assert [(fault.number, f"[{reason}]" in fault.why) for fault in found.faults] == [(2, True)]
    assert (found.entries, [event["home"] for _, event in found.schedule()]) == (3, ["Arsenal", "Fulham"])
    assert len(list(found.results())) == 1


def test_a_bad_round_is_one_bad_entry():
    """Numbers count entries over rounds; an invalid round is one of them."""
    matches = [{"date": "2018-08-18", "team1": "A", "team2": "B"}]
    rounds = [{"name": "1", "matches": matches}, {"name": "2"}, {"name": "3", "matches": [*matches, 7]}]
    found = parse_season(json.dumps({"rounds": rounds}).encode(), S)
    assert ([fault.number for fault in found.faults], found.entries, len(found.fixtures)) == ([2, 4], 4, 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "not_json"), (b"{", "not_json"), (b"\xff\xfe", "not_json"), (b"[]", "no_matches"), (b"7", "no_matches"),
     (b'{"matches": []}', "no_matches"), (b'{"matches": 3, "rounds": {}}', "no_matches"),
     (b'{"rounds": [{"name": "1", "matches": []}]}', "no_matches")],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_whole(data, reason):
    """A file that is not JSON, or has no matches, has one reason and no events."""
    with pytest.raises(InvalidEventError) as raised:
        parse_season(data, S)
    assert raised.value.reason == reason


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2000) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ft", "name", "x"]), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip
_ENTRIES = st.builds(
    lambda told: {**ARSENAL_CHELSEA, **told},
    st.dictionaries(st.sampled_from([*ARSENAL_CHELSEA, "score", "score1", "score2", "status"]), _ANYTHING, max_size=4),
)


@given(st.lists(_ENTRIES | _ANYTHING, min_size=1, max_size=6))
def test_whatever_an_entry_holds_it_is_a_fault_or_a_good_event(entries):
    """Every entry is counted once, as a match, a repetition or a fault; every event passes the sinks' own check and encodes."""
    found = parsed(*entries)
    assert len(entries) == len(found.fixtures) + len(found.repeated) + len(found.faults)
    for topic, event in [*found.schedule(), *found.results()]:
        check_league_event(topic, event)
        assert event == CODEC.decode(topic, CODEC.encode(topic, event))


def test_the_bundled_season_is_whole():
    """All 380 matches of 2018/19 with their results, and twice the same events."""
    data = gzip.decompress(SEASON_FILE.read_bytes())
    found = parse_season(data, SEASON)
    assert (found.entries, len(list(found.results())), found.faults, found.repeated) == (380, 380, (), ())
    goals = sum(event["home_goals"] + event["away_goals"] for _, event in found.results())
    assert goals == 1072  # the league's own count of that season
    assert all(
        fixture.finalized["finalized_at"] - fixture.scheduled["kickoff"] == MATCH_MS for fixture in found.fixtures
    )
    assert found == parse_season(data, SEASON)
