"""The list of matches in the console."""

from __future__ import annotations

from highwater.api.dashboard.pages.match import listed_html


def test_an_unknown_season_is_named_beside_the_known_ones() -> None:
    """It is not loaded forever, and its name is text."""
    shown = listed_html(["2018"], "<b>", None)
    assert "There is no season <b>&lt;b&gt;</b>." in shown
    assert "/match?season=2018" in shown
    assert "There is no match yet" in listed_html([], "", {"rounds": []})
