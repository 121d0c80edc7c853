"""The pages of a season as of an earlier change, as HTML: table, schedule, results, figures, of the matches at that
place.

Invariant. A page is a function of the matches alone, made by the same functions as the page that is served. Changes of former
versions do not name the round of a match: that is said, and a page that needs it is not shown as it is now instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from highwater.api.dashboard import figures
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.view import link, text
from highwater.streams.league.bracket import bracket
from highwater.streams.league.matches import Match
from highwater.streams.league.past import Change, matches_after, names_rounds
from highwater.streams.league.results import results
from highwater.streams.league.schedule import schedule
from highwater.streams.league.standings import table
from highwater.streams.league.stats import stats

_COLUMNS = ("place", "team", "played#", "won#", "drawn#", "lost#", "goals#", "difference#", "points#")
_MATCH_COLUMNS = ("kickoff (UTC)", "round", "home", "away", "result#", "status")
# Matches of a season that are listed; the others are counted.
_MATCHES_MAX = 400
_NO_ROUNDS = (
    "Some changes were written by a former version, which did not name rounds, so matches stand by their kickoff."
)
_ALL_ROUNDS = (
    "Some changes were written by a former version, which did not name rounds, so those matches count in any round."
)
_NO_BRACKET = (
    "The bracket cannot be shown as of then: it is made of the rounds, and some changes were written by a former version, "
    "which did not name them. The page that is served shows it as it is now."
)
_NO_TIES = "No match up to then is of a knock-out round, so there was no bracket."
# name in a key -> what the page is called
PAGES: Mapping[str, str] = {
    "table": "Table",
    "schedule": "Schedule",
    "results": "Results",
    "stats": "Figures",
    "bracket": "Bracket",
}


class _Then(NamedTuple):
    """A season at an earlier place in the log; `has_rounds`: the changes up to there name the round of each match."""

    season: str
    matches: Sequence[Match]
    has_rounds: bool


def page_of(key: str) -> str:
    """Return the page that the key of a league page names, the table if it names none of these."""
    name = key.split(":", 2)[1] if key.count(":") > 1 else ""
    return name if name in PAGES else "table"


def page_html(name: str, season: str, changes: Sequence[Change]) -> str:
    """A page of a season after these changes."""
    return _MADE[name](_Then(season, matches_after(changes), names_rounds(changes)))


def _table(then: _Then) -> str:
    unnamed = "" if then.has_rounds else f'<p class="hw-muted hw-small">{_ALL_ROUNDS}</p>'
    return unnamed + standings_html(table(then.season, then.matches))


def standings_html(document: Mapping[str, Any]) -> str:
    """The table of a season."""
    rows = "".join(
        f"<tr><td>{row['position']}</td><td>{text(row['team'])}</td>"
        + numbers(
            *(str(row[name]) for name in ("played", "won", "drawn", "lost")),
            f"{row['goals_for']} : {row['goals_against']}",
            f"{row['goal_difference']:+d}" if row["goal_difference"] else "0",
            f"<b>{row['points']}</b>",
        )
        + "</tr>"
        for row in document["table"]
    )
    return table_html(_COLUMNS, rows, "Table as of then")


def _schedule(then: _Then) -> str:
    held = [match for part in schedule(then.season, then.matches)["rounds"] for match in part["matches"]]
    unnamed = "" if then.has_rounds else f'<p class="hw-muted hw-small">{_NO_ROUNDS}</p>'
    return unnamed + _matches(held, "Schedule as of then")


def _results(then: _Then) -> str:
    return _matches(results(then.season, then.matches)["results"], "Results as of then")


def _matches(held: Sequence[Mapping[str, Any]], label: str) -> str:
    lines = "".join(
        f"<tr><td>{figures.iso_text(one['kickoff'])}</td><td>{text(one['round'])}</td>"
        f'<td><a href="{text(link("/match", id=one["match_id"]))}">{text(one["home"])}</a></td><td>{text(one["away"])}</td>'
        f"{numbers(_score(one))}<td>{text(one['status'])}</td></tr>"
        for one in held[:_MATCHES_MAX]
    )
    rest = len(held) - _MATCHES_MAX
    more = f'<p class="hw-muted hw-small">and {rest:,} more</p>' if rest > 0 else ""
    return table_html(_MATCH_COLUMNS, lines, label) + more


def _score(match: Mapping[str, Any]) -> str:
    if match["home_goals"] is None:
        return figures.DASH
    more = "".join(
        f", {label} {match[name]['home_goals']} : {match[name]['away_goals']}"
        for name, label in (("extra_time", "extra time"), ("penalties", "penalties"))
        if name in match
    )
    return f"{match['home_goals']} : {match['away_goals']}{more}"


def _stats(then: _Then) -> str:
    """The numbers of a season, without those of each team and match, which its other pages have."""
    found = {name: value for name, value in stats(then.season, then.matches).items() if isinstance(value, int | float)}
    lines = "".join(
        f"<tr><td>{text(name.replace('_', ' '))}</td>{numbers(text(f'{value:,}'))}</tr>"
        for name, value in found.items()
    )
    return table_html(("figure", "value#"), lines, "Figures as of then")


def _bracket(then: _Then) -> str:
    if not then.has_rounds:
        return f'<p class="hw-warn">{_NO_BRACKET}</p>'
    rounds = bracket(then.season, then.matches)["rounds"]
    if not rounds:
        return f'<p class="hw-muted">{_NO_TIES}</p>'
    return "".join(f'<h3 class="hw">{text(part["name"].capitalize())}</h3>{_ties(part)}' for part in rounds)


def _legs(matches: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f'<a href="{text(link("/match", id=one["match_id"]))}">{_score(one)}</a>' for one in matches)


def _ties(part: Mapping[str, Any]) -> str:
    """The ties of a stage: the teams, their goals over all matches, each match, and who plays on."""
    lines = "".join(
        f"<tr><td>{text(tie['home'])}</td><td>{text(tie['away'])}</td>{numbers(_score(tie))}"
        f"<td>{_legs(tie['matches'])}</td><td>{text(tie['winner'] or 'open')}</td></tr>"
        for tie in part["ties"]
    )
    return table_html(
        ("home first", "away first", "goals#", "matches", "plays on"), lines, f"{part['name'].capitalize()} as of then"
    )


_MADE: Mapping[str, Callable[[_Then], str]] = {
    "table": _table,
    "schedule": _schedule,
    "results": _results,
    "stats": _stats,
    "bracket": _bracket,
}
