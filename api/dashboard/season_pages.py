"""The pages of a season as of an earlier change, as HTML: table, schedule, results, figures, of the matches at that
place.

Invariant. A page is a function of the matches alone, made by the same functions as the page that is served. What no change in the
log names, which is the round of a match, is said to be missing; a page that needs it is not shown as it is now instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from highwater.api.dashboard import figures
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.view import link, text
from highwater.streams.league.matches import Match
from highwater.streams.league.results import results
from highwater.streams.league.schedule import schedule
from highwater.streams.league.standings import table
from highwater.streams.league.stats import stats

_COLUMNS = ("place", "team", "played#", "won#", "drawn#", "lost#", "goals#", "difference#", "points#")
_MATCH_COLUMNS = ("kickoff (UTC)", "home", "away", "result#", "status")
# Matches of a season that are listed; the others are counted.
_MATCHES_MAX = 400
_NO_ROUNDS = "Changes in the log do not name rounds, so matches stand by their kickoff."
_NO_BRACKET = (
    "The bracket cannot be shown as of then: it is made of the rounds, and changes in the log do not name them. "
    "The page that is served shows it as it is now."
)
# name in a key -> what the page is called
PAGES: Mapping[str, str] = {
    "table": "Table",
    "schedule": "Schedule",
    "results": "Results",
    "stats": "Figures",
    "bracket": "Bracket",
}


def page_of(key: str) -> str:
    """Return the page that the key of a league page names, the table if it names none of these."""
    name = key.split(":", 2)[1] if key.count(":") > 1 else ""
    return name if name in PAGES else "table"


def page_html(name: str, season: str, matches: Sequence[Match]) -> str:
    """A page of a season with these matches."""
    return _MADE[name](season, matches)


def _table(season: str, matches: Sequence[Match]) -> str:
    return standings_html(table(season, matches))


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


def _schedule(season: str, matches: Sequence[Match]) -> str:
    held = [match for part in schedule(season, matches)["rounds"] for match in part["matches"]]
    return f'<p class="hw-muted hw-small">{_NO_ROUNDS}</p>' + _matches(held, "Schedule as of then")


def _results(season: str, matches: Sequence[Match]) -> str:
    return _matches(results(season, matches)["results"], "Results as of then")


def _matches(held: Sequence[Mapping[str, Any]], label: str) -> str:
    lines = "".join(
        f"<tr><td>{figures.iso_text(one['kickoff'])}</td>"
        f'<td><a href="{text(link("/match", id=one["match_id"]))}">{text(one["home"])}</a></td><td>{text(one["away"])}</td>'
        f"{numbers(_score(one))}<td>{text(one['status'])}</td></tr>"
        for one in held[:_MATCHES_MAX]
    )
    rest = len(held) - _MATCHES_MAX
    more = f'<p class="hw-muted hw-small">and {rest:,} more</p>' if rest > 0 else ""
    return table_html(_MATCH_COLUMNS, lines, label) + more


def _score(match: Mapping[str, Any]) -> str:
    return figures.DASH if match["home_goals"] is None else f"{match['home_goals']} : {match['away_goals']}"


def _stats(season: str, matches: Sequence[Match]) -> str:
    """The numbers of a season, without those of each team and match, which its other pages have."""
    found = {name: value for name, value in stats(season, matches).items() if isinstance(value, int | float)}
    lines = "".join(
        f"<tr><td>{text(name.replace('_', ' '))}</td>{numbers(text(f'{value:,}'))}</tr>"
        for name, value in found.items()
    )
    return table_html(("figure", "value#"), lines, "Figures as of then")


def _bracket(season: str, matches: Sequence[Match]) -> str:
    del season, matches
    return f'<p class="hw-warn">{_NO_BRACKET}</p>'


_MADE: Mapping[str, Callable[[str, Sequence[Match]], str]] = {
    "table": _table,
    "schedule": _schedule,
    "results": _results,
    "stats": _stats,
    "bracket": _bracket,
}
