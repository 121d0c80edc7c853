"""Shows the documents of a season and the matches in play, as HTML; pure functions of the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from highwater.api.readers.frame import DASH, card, facts, moment, note, segment, table, text
from highwater.streams.wording import counted

Document = Mapping[str, Any]

# Path, name, and the kind of its documents' keys; opening a season loads the first (R4.39).
TABS = (
    ("table", "Table", "league:table:"),
    ("schedule", "Schedule", "league:schedule:"),
    ("results", "Results", "league:results:"),
    ("stats", "Stats", "league:stats:"),
    ("bracket", "Bracket", "league:bracket:"),
)
LIVE_KEY = "league:stats-live:"


def season_address(season: str, tab: str = "") -> str:
    """Return the address of a season's page."""
    return f"/read/league/{segment(season)}" + (f"/{tab}" if tab else "")


def match_address(match_id: str) -> str:
    """Return the address of a match's page."""
    return f"/read/matches/{segment(match_id)}"


def score(match: Document) -> str:
    """Return its goals, or a dash before there are any; HTML."""
    home, away = match.get("home_goals"), match.get("away_goals")
    return DASH if home is None or away is None else f"{home}:{away}"


def match_line(match: Document, *, has_date: bool = True) -> str:
    """Return a match as an item of a list."""
    about = []
    if match.get("state") == "live":
        minute = match.get("minute")
        about.append(f'<b class="live" data-live>Live{"" if minute is None else f", minute {minute}"}</b>')
    if has_date:
        about.append(moment(match.get("kickoff"), has_time=not match.get("time_unknown")))
    for name, label in (("extra_time", "after extra time"), ("penalties", "penalties")):
        if match.get(name) is not None:
            about.append(f"{label} {score(match[name])}")
    if match.get("status") not in (None, "scheduled"):
        about.append(text(match["status"]))
    return (
        f'<li><span>{text(match["home"])}</span><a class="score" href="{match_address(match["match_id"])}" '
        f'aria-label="{text(match["home"])} against {text(match["away"])}: {score(match)}">{score(match)}</a>'
        f"<span>{text(match['away'])}</span><small>{' · '.join(about)}</small></li>"
    )


def match_list(matches: Iterable[Document], *, has_date: bool = True) -> str:
    """Return matches one below the other."""
    return f'<ul class="matches">{"".join(match_line(match, has_date=has_date) for match in matches)}</ul>'


def live(document: Document) -> str:
    """Return the matches in play."""
    matches = document["matches"]
    if not matches:
        return note("No match is in play now.")
    # Matches that have begun only by the clock are polled every few seconds, too.
    return f'<section class="card" data-live><h2>In play</h2>{match_list(matches, has_date=False)}</section>'


_COLUMNS = (
    ("#", "Position"), ("Team", "Team"), ("P", "Played"), ("W", "Won"), ("D", "Drawn"), ("L", "Lost"), ("GF", "Goals for"),
    ("GA", "Goals against"), ("GD", "Goal difference"), ("Pts", "Points"),
)  # fmt: skip
_FIGURES = ("played", "won", "drawn", "lost", "goals_for", "goals_against")


def standings(document: Document) -> str:
    """Return the table."""
    rows = [
        [
            str(row["position"]), text(row["team"]) + _deducted(row), *(str(row[name]) for name in _FIGURES),
            f"{row['goal_difference']:+d}", f"<b>{row['points']}</b>",
        ]
        for row in document["table"]
    ]  # fmt: skip
    withdrawn = "".join(
        note(f"{one['team']} was withdrawn, and its matches do not count: {one['reason']}")
        for one in document.get("rules", {}).get("withdrawn", ())
    )
    return (table("Standings", _COLUMNS, rows) if rows else note("No team is in the table yet.")) + withdrawn


def _deducted(row: Document) -> str:
    found = row.get("deductions", ())
    return "".join(f"<br><small>{one['points']} deducted: {text(one['reason'])}</small>" for one in found)


def schedule(document: Document) -> str:
    """Return all matches by round."""
    return "".join(
        f"<section><h2>{text(one['round'])}</h2>{card(match_list(one['matches']))}</section>"
        for one in document["rounds"]
    )


def results(document: Document) -> str:
    """Return matches with a result."""
    found = document["results"]
    return (
        card(match_list(found)) if found else note("No match has a result yet. The schedule shows the coming matches.")
    )


def stats(document: Document) -> str:
    """Return figures of the season."""
    goals = f"{document['goals']} ({document['goals_per_match']:.2f} a match)"
    pairs = [
        ("Matches", f"{document['played']} of {document['scheduled']} played"),
        ("Goals", goals),
        ("Home wins", f"{document['home_wins']} ({document['home_share']:.0%})"),
        ("Draws", f"{document['draws']} ({document['draw_share']:.0%})"),
        ("Away wins", f"{document['away_wins']} ({document['away_share']:.0%})"),
        ("Clean sheets", str(document["clean_sheets"])),
    ]
    for name, label in (
        ("longest_winning_run", "Longest winning run"),
        ("longest_unbeaten_run", "Longest unbeaten run"),
    ):
        run = document[name]
        if run is not None:
            pairs.append((label, f"{text(run['team'])}, {counted(run['matches'], 'match', 'matches')}"))
    lists = "".join(
        f"<section><h2>{label}</h2>{card(match_list(document[name]))}</section>"
        for name, label in (("biggest_wins", "Biggest wins"), ("most_goals", "Most goals"))
        if document[name]
    )
    return card(facts(pairs)) + lists


def bracket(document: Document) -> str:
    """Return the knock-out rounds."""
    if not document["rounds"]:
        return note("This season has no knock-out rounds.")
    return "".join(
        f"<section><h2>{text(one['name'].capitalize())}</h2>{card(''.join(map(_tie, one['ties'])))}</section>"
        for one in document["rounds"]
    )


def _tie(tie: Document) -> str:
    won = f' <span class="new">{text(tie["winner"])} goes through</span>' if tie["winner"] else ""
    return f"<h3>{text(tie['home'])} {DASH} {text(tie['away'])} {score(tie)}{won}</h3>{match_list(tie['matches'])}"


def season_list(document: Document) -> str:
    """Return the seasons."""
    found = [one["season"] for one in document["seasons"]]
    if not found:
        return note(
            "There is no season yet. The operator imports one with: highwater import openfootball FILE --season ID"
        )
    lines = "".join(f'<li><a href="{season_address(season)}">{text(season)}</a></li>' for season in found)
    cursor = document.get("next_cursor")
    more = f'<p><a href="/read?cursor={segment(cursor)}">More seasons</a></p>' if cursor else ""
    return card(f'<ul class="plain">{lines}</ul>') + more
