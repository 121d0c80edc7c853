"""The card of a season's past: which keys have one, where a position is, and no markup from outside."""

from __future__ import annotations

import pytest

from highwater.api.dashboard.season_pages import PAGES, page_html, page_of
from highwater.api.dashboard.season_past import latest_html, place_of, season_of
from highwater.streams.league.past import Change
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
    """None is the newest; a position that was not read is not found."""
    assert place_of(CHANGES, "") == 1
    assert place_of(CHANGES, "league.match-changed/0/7") == 0
    assert place_of(CHANGES, "league.match-changed/0/8") is None


def test_what_comes_from_outside_is_no_markup() -> None:
    """Names of teams are escaped in the table and in the changes; the newest change is first."""
    shown = "".join(page_html(name, "s", CHANGES) for name in PAGES) + latest_html(CHANGES)
    assert "<b>A" not in shown
    assert "2 : 1" in shown
    assert latest_html(CHANGES).index("2 : 1") < latest_html(CHANGES).index("scheduled")


def test_every_page_is_of_the_matches_as_they_were() -> None:
    """Before the result: a match to come, no result and no goal. A season of one league round had no bracket."""
    before, after = [{name: page_html(name, "s", CHANGES[:n]) for name in PAGES} for n in (1, 2)]
    assert [pages["results"].count("<tr><td>") for pages in (before, after)] == [0, 1]
    assert [pages["schedule"].count("<tr><td>") for pages in (before, after)] == [1, 1]
    assert [">2 : 1<" in pages["schedule"] for pages in (before, after)] == [False, True]
    assert [f'<td>goals</td><td class="hw-number">{goals}<' in pages["stats"] for goals, pages in ((0, before), (3, after))] == [
        True, True,
    ]  # fmt: skip
    assert before["bracket"] == after["bracket"]
    assert "there was no bracket" in before["bracket"]


def test_the_bracket_is_of_the_matches_as_they_were() -> None:
    """A semi-final is open until its result is in the log; where a change does not name its round, the page says so."""
    semi = ("A", "<b>C</b>")
    changes = [change(1, scheduled(*semi, round="Semi-final")), change(2, final(*semi, 1, 3, round="Semi-final"))]
    before, after = [page_html("bracket", "s", changes[:n]) for n in (1, 2)]
    assert ("Semi-final" in before, "<td>open</td>" in before, "1 : 3" in before) == (True, True, False)
    assert ("<td>&lt;b&gt;C&lt;/b&gt;</td></tr>" in after, "1 : 3" in after) == (True, True)
    assert "<td>Semi-final</td>" in page_html("schedule", "s", changes)
    former = [Change({**one.match, "round": None}, one.by) for one in changes]
    assert "cannot be shown as of then" in page_html("bracket", "s", former)
    assert "did not name rounds" in page_html("schedule", "s", former)


@pytest.mark.parametrize(
    ("key", "page"),
    [("league:results:s", "results"), ("league:stats-live:s", "table"), ("league:bracket:s", "bracket"), ("x", "table")],
)  # fmt: skip
def test_the_page_that_a_key_names(key: str, page: str) -> None:
    """Another page of the season shows the table."""
    assert page_of(key) == page
