"""The card of a season's past: which keys have one, where a position is, and no markup from outside."""

from __future__ import annotations

import pytest

from highwater.api.dashboard.season_past import latest_html, place_of, season_of, standings_html
from highwater.streams.league.past import matches_after
from highwater.streams.league.standings import table
from tests.unit.league.facts import final, scheduled
from tests.unit.league.test_past import change

CHANGES = [change(7, scheduled("<b>A</b>", "B")), change(9, final("<b>A</b>", "B", 2, 1))]


@pytest.mark.parametrize(
    ("key", "season"),
    [("league:table:2025-26", "2025-26"), ("league:results:a:b", "a:b"), ("league:list", None), ("md:m:live", None)],
)
def test_the_season_of_a_key(key: str, season: str | None) -> None:
    """A page that is of no season has no past here."""
    assert season_of(key) == season


def test_a_position_is_found_among_the_changes() -> None:
    """None is the newest; one that was not read is none."""
    assert place_of(CHANGES, "") == 1
    assert place_of(CHANGES, "league.match-changed/0/7") == 0
    assert place_of(CHANGES, "league.match-changed/0/8") is None


def test_what_comes_from_outside_is_no_markup() -> None:
    """Names of teams are escaped in the table and in the changes; the newest change is first."""
    shown = standings_html(table("s", matches_after(CHANGES))) + latest_html(CHANGES)
    assert "<b>A" not in shown
    assert "2 : 1" in shown
    assert latest_html(CHANGES).index("2 : 1") < latest_html(CHANGES).index("scheduled")
