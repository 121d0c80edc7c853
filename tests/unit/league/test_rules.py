"""Declared rules of a season: deductions, tie-breaks, withdrawn teams, and rounds that count."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.positions import Cause
from highwater.streams.league.matches import Match
from highwater.streams.league.rules import TIE_BREAKS, Rules, rules_of
from highwater.streams.league.standings import table, table_causes
from tests.unit.league.facts import SEASON, final, scheduled, seasons, unhurried

CAUSE = Cause(9, "league.rules-changed/0/1")


def rules(**declared: Any) -> Rules:
    """The rules of an event."""
    nothing: dict[str, Any] = {
        "deductions": [], "tie_breaks": [], "withdrawn": [], "rounds_counted": [], "rounds_not_counted": [],
    }  # fmt: skip
    return rules_of({"season": SEASON, **nothing, **declared}, CAUSE)


def teams(matches: list[Match], declared: Rules) -> list[str]:
    """The teams in the order of the table."""
    return [row["team"] for row in table(SEASON, matches, declared)["table"]]


def test_deducted_points_are_shown_with_their_reasons():
    """They move the team; played matches stay as they are."""
    matches = [final("A", "B", 1, 0), final("A", "C", 1, 0), final("B", "C", 1, 0)]
    deductions = [
        {"team": "A", "points": 4, "reason": "Insolvency"},
        {"team": "A", "points": 1, "reason": "A player without a licence"},
    ]
    found = table(SEASON, matches, rules(deductions=deductions))
    assert [(row["team"], row["won"], row["points"]) for row in found["table"]] == [
        ("B", 1, 3),
        ("A", 2, 1),
        ("C", 0, 0),
    ]
    assert found["table"][1]["deductions"] == [{"points": one["points"], "reason": one["reason"]} for one in deductions]
    assert ["deductions" in row for row in found["table"]] == [False, True, False]
    assert (found["rules"]["deductions"], found["rules"]["tie_breaks"]) == (
        deductions,
        ["goal_difference", "goals_for"],
    )
    assert "rules" not in table(SEASON, matches)
    assert next(table_causes(matches, rules())) == CAUSE


def test_a_head_to_head_comes_before_the_goals():
    """Of three level teams that it leaves two level, the matches of these two are compared again."""
    pair = [final("A", "B", 1, 0), final("B", "x", 5, 0)]
    assert teams(pair, rules()) == ["B", "A", "x"]
    assert teams(pair, rules(tie_breaks=["head_to_head_points", "goal_difference"])) == ["A", "B", "x"]
    # Nine points each; among them C has six and A and B three, and B beat A.
    three = [
        *(final("B", "A", 1, 0), final("A", "C", 3, 0), final("C", "B", 2, 0), final("C", "A", 1, 0)),
        *(final(team, "x", 1, 0, match_id=f"{team}{number}") for number, team in enumerate("AABBC")),
    ]
    assert teams(three, rules()) == ["A", "C", "B", "x"]
    assert teams(three, rules(tie_breaks=["head_to_head_points"])) == ["C", "B", "A", "x"]


def test_a_withdrawn_team_has_no_matches():
    """Its results count for nobody, and it is not in the table; the reason is."""
    matches = [final("A", "B", 0, 3), final("A", "C", 1, 0), scheduled("C", "B")]
    withdrawn = [{"team": "B", "reason": "Expelled"}]
    found = table(SEASON, matches, rules(withdrawn=withdrawn))
    assert [(row["team"], row["played"], row["points"]) for row in found["table"]] == [("A", 1, 3), ("C", 1, 0)]
    assert found["rules"]["withdrawn"] == withdrawn


def test_rules_say_which_rounds_count():
    """A second phase that counts, a league round that does not; unknown names change nothing."""
    matches = [
        final("A", "B", 1, 0),
        final("A", "B", 0, 3, round="Championship Round - 1", match_id="2"),
        final("B", "A", 1, 0, round="Supercup"),
    ]
    assert [row["played"] for row in table(SEASON, matches)["table"]] == [2, 2]
    declared = rules(rounds_counted=["Championship Round - 1", "none"], rounds_not_counted=["Supercup"])
    assert [(row["team"], row["points"]) for row in table(SEASON, matches, declared)["table"]] == [("B", 3), ("A", 3)]


@unhurried
@given(seasons(), st.lists(st.sampled_from(TIE_BREAKS), unique=True), st.randoms())
def test_any_tie_breaks_rank_every_team_once(matches: list[Match], tie_breaks: list[str], chance: Any):
    """By points, in any order of the matches."""
    found = table(SEASON, matches, rules(tie_breaks=tie_breaks))["table"]
    shuffled = matches.copy()
    chance.shuffle(shuffled)
    assert found == table(SEASON, shuffled, rules(tie_breaks=tie_breaks))["table"]
    assert {row["team"] for row in found} == {row["team"] for row in table(SEASON, matches)["table"]}
    points = [row["points"] for row in found]
    assert points == sorted(points, reverse=True)
