"""Matches for tests: made by hand, drawn by hypothesis, and those of a whole real season."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st

from highwater.schemas.positions import Cause
from highwater.streams.league.matches import Match, Status
from tests import ROOT

SAMPLE = ROOT / "api" / "sample" / "season.json.gz"
SEASON = "s"
KICKOFF_MS = 1_535_200_200_000  # 2018-08-25T12:30:00Z
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
# A busy machine does not break the invariant.
unhurried = settings(deadline=None)
SCHEDULED, UPDATED, FINALIZED = "league.match-scheduled", "league.match-updated", "league.match-finalized"


def scheduled(home: str, away: str, **more: Any) -> Match:
    """A match that has not been played; its id is made of its teams by default."""
    told = {"match_id": f"{home}-{away}", "season": SEASON, "round": "Matchday 1", "kickoff_ms": KICKOFF_MS}
    return Match(**{**told, "home": home, "away": away, "schedule_by": Cause(1, f"{SCHEDULED}/0/1"), **more})


def live(home: str, away: str, home_goals: int, away_goals: int, minute: int | None = 30, **more: Any) -> Match:
    """A match in play."""
    told = {"home_goals": home_goals, "away_goals": away_goals, "minute": minute}
    return scheduled(home, away, **{**told, "score_by": Cause(2, f"{UPDATED}/0/1"), **more})


def final(home: str, away: str, home_goals: int, away_goals: int, **more: Any) -> Match:
    """A match with its result."""
    told = {"home_goals": home_goals, "away_goals": away_goals, "finalized_ms": KICKOFF_MS + 2 * HOUR_MS}
    return scheduled(home, away, **{**told, "result_by": Cause(3, f"{FINALIZED}/0/1"), **more})


def with_goal(match: Match) -> Match:
    """The match after a goal in play; one that is final takes none."""
    if match.is_final:
        return match
    scored = {"home_goals": (match.home_goals or 0) + 1, "away_goals": match.away_goals or 0, "minute": 77}
    return replace(match, score_by=Cause(9_999, f"{UPDATED}/0/9999"), **scored)


_goals = st.integers(0, 9)


@st.composite
def a_match(draw: st.DrawFn, number: int) -> Match:
    """Any match of a small league: few teams and kickoffs, so that everything ties with something."""
    home, away = draw(st.lists(st.sampled_from("ABCDE"), min_size=2, max_size=2, unique=True))
    told: dict[str, Any] = {
        "match_id": f"m{number}",
        "round": draw(st.sampled_from(["Matchday 1", "Matchday 2", "Semi-finals", "Final"])),
        "kickoff_ms": KICKOFF_MS + draw(st.integers(0, 3)) * HOUR_MS,
        "status": draw(st.sampled_from(Status)),
        "time_unknown": draw(st.booleans()),
        "schedule_by": Cause(draw(st.integers(0, 9)), f"{SCHEDULED}/0/{draw(st.integers(0, 12))}"),
    }
    state = draw(st.sampled_from(["scheduled", "live", "final"]))
    if state == "scheduled":
        return scheduled(home, away, **told)
    by = Cause(draw(st.integers(0, 9)), f"{UPDATED}/0/{draw(st.integers(0, 12))}")
    if state == "live":
        return live(home, away, draw(_goals), draw(_goals), score_by=by, **told)
    goals = draw(_goals), draw(_goals)
    extra_time = draw(st.none() | st.tuples(st.integers(goals[0], 12), st.integers(goals[1], 12)))
    penalties = draw(st.none() | st.sampled_from([(5, 4), (0, 2)]))
    return final(home, away, *goals, result_by=by, extra_time=extra_time, penalties=penalties, **told)


@st.composite
def seasons(draw: st.DrawFn) -> list[Match]:
    """Any matches of one season."""
    return [draw(a_match(number)) for number in range(draw(st.integers(1, 12)))]


def real_matches() -> list[dict[str, Any]]:
    """The entries of the bundled season, as the file has them."""
    found: list[dict[str, Any]] = orjson.loads(gzip.decompress(SAMPLE.read_bytes()))["matches"]
    return found


def real_season() -> list[Match]:
    """The bundled season as matches that are final."""
    return [
        final(
            entry["team1"],
            entry["team2"],
            *entry["score"]["ft"],
            round=entry["round"],
            kickoff_ms=KICKOFF_MS + number * HOUR_MS,
        )
        for number, entry in enumerate(real_matches())
    ]
