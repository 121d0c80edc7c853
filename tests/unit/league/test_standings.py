"""The table: invariants over any season, and a real season computed a second time in another way."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.positions import Cause
from highwater.streams.league.matches import Match, Status, fold_finalized, fold_scheduled, fold_updated
from highwater.streams.league.standings import NO_RULES, counted_matches, result_of, table
from tests.unit.league.facts import (
    KICKOFF_MS,
    SEASON,
    final,
    live,
    real_matches,
    real_season,
    scheduled,
    seasons,
    unhurried,
    with_goal,
)


def row(found: dict[str, Any], team: str) -> dict[str, Any]:
    """A team's row."""
    (one,) = [row for row in found["table"] if row["team"] == team]
    return dict(one)


def plain(entries: list[tuple[str, str, int, int]]) -> list[tuple[Any, ...]]:
    """The table computed without the product: (team, played, won, drawn, lost, for, against, points), best first."""
    counts: dict[str, Counter[str]] = {}
    for home, away, home_goals, away_goals in entries:
        for team, scored, conceded in ((home, home_goals, away_goals), (away, away_goals, home_goals)):
            count = counts.setdefault(team, Counter())
            count["p"] += 1
            count["f"] += scored
            count["a"] += conceded
            count["wdl"[(scored == conceded) + 2 * (scored < conceded)]] += 1
    rows = [(team, c["p"], c["w"], c["d"], c["l"], c["f"], c["a"], 3 * c["w"] + c["d"]) for team, c in counts.items()]
    return sorted(rows, key=lambda r: (r[7], r[5] - r[6], r[5], [-ord(letter) for letter in r[0]]), reverse=True)


def shown(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The document's rows in the form of `plain`."""
    names = ("team", "played", "won", "drawn", "lost", "goals_for", "goals_against", "points")
    return [tuple(row[name] for name in names) for row in found["table"]]


def test_a_real_season():
    """The table of a whole season is the one that counting its file gives, and its champion is the one that history knows."""
    entries = [(e["team1"], e["team2"], *e["score"]["ft"]) for e in real_matches()]
    found = table("2018-19", real_season())
    assert plain(entries) == shown(found)
    assert list(range(1, 21)) == [row["position"] for row in found["table"]]
    best = {"position": 1, "team": "Manchester City", "played": 38, "won": 32, "drawn": 2, "lost": 4, "goals_for": 95}
    assert {**best, "goals_against": 23, "goal_difference": 72, "points": 98} == found["table"][0]


def test_the_keys_stand_in_the_order_of_the_contract():
    """Names and order of what a row holds."""
    (first, _) = table(SEASON, [final("A", "B", 1, 0)])["table"]
    names = [
        "position",
        "team",
        "played",
        "won",
        "drawn",
        "lost",
        "goals_for",
        "goals_against",
        "goal_difference",
        "points",
    ]
    assert names == list(first)


def test_points_then_difference_then_goals_then_name():
    """Each of the four decides where those before it are level; equal rows still have positions of their own."""
    found = table(
        SEASON,
        [
            final("Winner", "x", 1, 0),
            final("Many", "y", 3, 3),
            final("Alpha", "Beta", 1, 1),
            final("z", "Big", 0, 2),
        ],
    )
    assert [row["team"] for row in found["table"]] == ["Big", "Winner", "Many", "y", "Alpha", "Beta", "x", "z"]
    assert list(range(1, 9)) == [row["position"] for row in found["table"]]


def test_a_team_is_there_before_it_has_played():
    """Teams of a match to come, or in play, stand with nothing played; those of a cancelled one do not."""
    found = table(
        SEASON,
        [
            scheduled("A", "B"),
            live("C", "D", 2, 0),
            scheduled("E", "F", status=Status.CANCELLED),
            scheduled("G", "H", status=Status.POSTPONED),
        ],
    )
    assert list("ABCDGH") == [row["team"] for row in found["table"]]
    assert {0} == {row[name] for row in found["table"] for name in ("played", "points", "goals_for")}


def test_a_result_stays_when_the_match_is_cancelled_later():
    """Only another result corrects a result."""
    assert row(table(SEASON, [final("A", "B", 3, 0, status=Status.CANCELLED)]), "A")["points"] == 3


def test_play_offs_give_no_points():
    """A team that only plays there is not in the table; in a season of knock-out rounds all matches count."""
    league = [final("A", "B", 1, 0), final("B", "A", 2, 2, round="Matchday 2", match_id="return")]
    play_offs = [final("A", "C", 3, 0, round="Play-offs 1"), final("B", "A", 1, 0, round="Playoffs, Final")]
    assert table(SEASON, [*league, *play_offs]) == table(SEASON, league)
    assert [row["team"] for row in table(SEASON, play_offs)["table"]] == ["A", "B", "C"]


@unhurried
@given(seasons(), st.randoms())
def test_the_order_of_matches_does_not_matter(matches: list[Match], chance: Any):
    """The table of the same matches is the same in any order."""
    shuffled = matches.copy()
    chance.shuffle(shuffled)
    assert table(SEASON, matches) == table(SEASON, shuffled)


@unhurried
@given(seasons())
def test_what_sums_up(matches: list[Match]):
    """Goal differences sum to 0, points to 3 a decided and 2 a drawn match, wins are others' losses, rows are in order."""
    rows = table(SEASON, matches)["table"]
    results = [result for result in map(result_of, counted_matches(matches, NO_RULES)) if result is not None]
    drawn = sum(home == away for home, away in results)
    total: Counter[str] = Counter()
    for one in rows:
        total.update({name: one[name] for name in one if name != "team"})
    assert total["goal_difference"] == 0
    assert total["points"] == 3 * (len(results) - drawn) + 2 * drawn
    assert (total["won"], total["drawn"], total["played"]) == (total["lost"], 2 * drawn, 2 * len(results))
    assert total["goals_for"] == sum(map(sum, results))
    ranks = [(-r["points"], -r["goal_difference"], -r["goals_for"], r["team"]) for r in rows]
    assert sorted(ranks) == ranks


@unhurried
@given(seasons())
def test_a_goal_in_play_changes_nothing(matches: list[Match]):
    """The table before and after a goal in every match that may have one is the same."""
    assert table(SEASON, matches) == table(SEASON, [with_goal(match) for match in matches])


PAIRS = [("A", "B"), ("B", "C"), ("C", "A"), ("A", "C")]
STEPS = st.tuples(
    st.sampled_from(["scheduled", "updated", "finalized"]), st.integers(0, 3), st.integers(0, 5), st.integers(0, 5)
)


@unhurried
@given(st.lists(STEPS, max_size=40))
def test_folding_event_by_event_comes_to_the_table_of_the_last_results(steps: list[tuple[str, int, int, int]]):
    """After any events the table is that of the last results, counted from scratch."""
    held: dict[int, Match] = {}
    last: dict[int, tuple[int, int]] = {}
    for offset, (kind, number, home_goals, away_goals) in enumerate(steps):
        home, away = PAIRS[number]
        cause = Cause(1, f"t/0/{offset}")  # in one batch, so with one time of the broker
        event = {
            "match_id": str(number), "season": SEASON, "round": "1", "kickoff": KICKOFF_MS + home_goals, "home": home,
            "away": away, "time_unknown": False, "status": None, "home_goals": home_goals, "away_goals": away_goals,
            "minute": 1, "finalized_at": KICKOFF_MS,
        }  # fmt: skip
        if kind == "scheduled" or number not in held:
            held[number] = fold_scheduled(held.get(number), event, cause)
        elif kind == "updated":
            held[number] = fold_updated(held[number], event, cause)
        else:
            held[number] = fold_finalized(held[number], event, cause)
            last[number] = (home_goals, away_goals)
    played = [one for one in shown(table(SEASON, list(held.values()))) if one[1]]
    assert plain([(*PAIRS[number], *goals) for number, goals in last.items()]) == played
