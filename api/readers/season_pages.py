"""Shows the documents of a season and the matches in play, as HTML; pure functions of the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from highwater.api.readers.frame import DASH, card, facts, moment, note, segment, table, text
from highwater.streams.messages import Messages, gettext_noop

Document = Mapping[str, Any]

# Path, name, and the kind of its documents' keys; opening a season loads the first (R4.39).
TABS = (
    ("table", gettext_noop("Table"), "league:table:"),
    ("schedule", gettext_noop("Schedule"), "league:schedule:"),
    ("results", gettext_noop("Results"), "league:results:"),
    ("stats", gettext_noop("Stats"), "league:stats:"),
    ("bracket", gettext_noop("Bracket"), "league:bracket:"),
)
# Names of knock-out rounds (`streams/league/stages.py`), and statuses of matches beside `scheduled`.
_STAGES = (
    gettext_noop("final"),
    gettext_noop("third place"),
    gettext_noop("semi-final"),
    gettext_noop("quarter-final"),
    gettext_noop("play-off"),
)
STATUSES = (gettext_noop("postponed"), gettext_noop("cancelled"))
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


def match_line(match: Document, messages: Messages, *, has_date: bool = True) -> str:
    """Return a match as an item of a list."""
    about = []
    if match.get("state") == "live":
        about.append(f'<b class="live" data-live>{in_play(match.get("minute"), messages)}</b>')
    if has_date:
        about.append(moment(match.get("kickoff"), messages, has_time=not match.get("time_unknown")))
    if match.get("extra_time") is not None:
        about.append(messages.gettext("after extra time {score}", score=score(match["extra_time"])))
    if match.get("penalties") is not None:
        about.append(messages.gettext("penalties {score}", score=score(match["penalties"])))
    if match.get("status") not in (None, "scheduled"):
        about.append(text(messages.known(match["status"], STATUSES)))
    named = messages.gettext(
        "{home} against {away}: {score}", home=match["home"], away=match["away"], score=score(match)
    )
    return (
        f'<li><span>{text(match["home"])}</span><a class="score" href="{match_address(match["match_id"])}" '
        f'aria-label="{text(named)}">{score(match)}</a>'
        f"<span>{text(match['away'])}</span><small>{' · '.join(about)}</small></li>"
    )


def in_play(minute: object, messages: Messages) -> str:
    """Return that a match is in play, with its minute if that is known."""
    if minute is None:
        return messages.gettext("Live")
    return messages.gettext("Live, minute {minute}", minute=minute)


def match_list(matches: Iterable[Document], messages: Messages, *, has_date: bool = True) -> str:
    """Return matches one below the other."""
    return f'<ul class="matches">{"".join(match_line(match, messages, has_date=has_date) for match in matches)}</ul>'


def live(document: Document, messages: Messages) -> str:
    """Return the matches in play."""
    matches = document["matches"]
    if not matches:
        return note(messages.gettext("No match is in play now."))
    # Matches that have begun only by the clock are polled every few seconds, too.
    listed = match_list(matches, messages, has_date=False)
    return f'<section class="card" data-live><h2>{messages.gettext("In play")}</h2>{listed}</section>'


_COLUMNS = (
    ("#", gettext_noop("Position")),
    (gettext_noop("Team"), gettext_noop("Team")),
    (gettext_noop("P"), gettext_noop("Played")),
    (gettext_noop("W"), gettext_noop("Won")),
    (gettext_noop("D"), gettext_noop("Drawn")),
    (gettext_noop("L"), gettext_noop("Lost")),
    (gettext_noop("GF"), gettext_noop("Goals for")),
    (gettext_noop("GA"), gettext_noop("Goals against")),
    (gettext_noop("GD"), gettext_noop("Goal difference")),
    (gettext_noop("Pts"), gettext_noop("Points")),
)
_FIGURES = ("played", "won", "drawn", "lost", "goals_for", "goals_against")


def standings(document: Document, messages: Messages) -> str:
    """Return the table."""
    rows = [
        [
            str(row["position"]), text(row["team"]) + _deducted(row, messages), *(str(row[name]) for name in _FIGURES),
            f"{row['goal_difference']:+d}", f"<b>{row['points']}</b>",
        ]
        for row in document["table"]
    ]  # fmt: skip
    withdrawn = "".join(note(_withdrawn(one, messages)) for one in document.get("rules", {}).get("withdrawn", ()))
    if not rows:
        return note(messages.gettext("No team is in the table yet.")) + withdrawn
    heads = [(messages.gettext(short), messages.gettext(full)) for short, full in _COLUMNS]
    return table(messages.gettext("Standings"), heads, rows) + withdrawn


def _withdrawn(one: Document, messages: Messages) -> str:
    return messages.gettext(
        "{team} was withdrawn, and its matches do not count: {reason}", team=one["team"], reason=one["reason"]
    )


def _deducted(row: Document, messages: Messages) -> str:
    said = (
        messages.gettext("{points} deducted: {reason}", points=one["points"], reason=one["reason"])
        for one in row.get("deductions", ())
    )
    return "".join(f"<br><small>{text(one)}</small>" for one in said)


def schedule(document: Document, messages: Messages) -> str:
    """Return all matches by round."""
    return "".join(
        f"<section><h2>{text(one['round'])}</h2>{card(match_list(one['matches'], messages))}</section>"
        for one in document["rounds"]
    )


def results(document: Document, messages: Messages) -> str:
    """Return matches with a result."""
    found = document["results"]
    if not found:
        return note(messages.gettext("No match has a result yet. The schedule shows the coming matches."))
    return card(match_list(found, messages))


_RUNS = (
    ("longest_winning_run", gettext_noop("Longest winning run")),
    ("longest_unbeaten_run", gettext_noop("Longest unbeaten run")),
)
_LISTS = (("biggest_wins", gettext_noop("Biggest wins")), ("most_goals", gettext_noop("Most goals")))


def stats(document: Document, messages: Messages) -> str:
    """Return figures of the season."""

    def shared(name: str, share: str) -> str:
        percent = messages.pgettext("percentage", "{number}%", number=f"{100 * document[share]:.0f}")
        return f"{document[name]} ({percent})"

    played = messages.gettext("{done} of {total} played", done=document["played"], total=document["scheduled"])
    mean = messages.decimal(document["goals_per_match"], 2)
    pairs = [
        (messages.gettext("Matches"), played),
        (messages.gettext("Goals"), messages.gettext("{goals} ({mean} a match)", goals=document["goals"], mean=mean)),
        (messages.gettext("Home wins"), shared("home_wins", "home_share")),
        (messages.gettext("Draws"), shared("draws", "draw_share")),
        (messages.gettext("Away wins"), shared("away_wins", "away_share")),
        (messages.gettext("Clean sheets"), str(document["clean_sheets"])),
    ]
    for name, label in _RUNS:
        run = document[name]
        if run is not None:
            matches = messages.ngettext("{number} match", "{number} matches", run["matches"])
            pairs.append((messages.gettext(label), f"{text(run['team'])}, {matches}"))
    lists = "".join(
        f"<section><h2>{messages.gettext(label)}</h2>{card(match_list(document[name], messages))}</section>"
        for name, label in _LISTS
        if document[name]
    )
    return card(facts(pairs)) + lists


def bracket(document: Document, messages: Messages) -> str:
    """Return the knock-out rounds."""
    if not document["rounds"]:
        return note(messages.gettext("This season has no knock-out rounds."))
    return "".join(
        f"<section><h2>{text(messages.known(one['name'], _STAGES).capitalize())}</h2>"
        f"{card(''.join(_tie(tie, messages) for tie in one['ties']))}</section>"
        for one in document["rounds"]
    )


def _tie(tie: Document, messages: Messages) -> str:
    won = messages.gettext("{team} goes through", team=tie["winner"]) if tie["winner"] else ""
    mark = f' <span class="new">{text(won)}</span>' if won else ""
    teams = f"{text(tie['home'])} {DASH} {text(tie['away'])}"
    return f"<h3>{teams} {score(tie)}{mark}</h3>{match_list(tie['matches'], messages)}"


def season_list(document: Document, messages: Messages) -> str:
    """Return the seasons."""
    found = [one["season"] for one in document["seasons"]]
    if not found:
        command = "highwater import openfootball FILE --season ID"
        return note(
            messages.gettext("There is no season yet. The operator imports one with: {command}", command=command)
        )
    lines = "".join(f'<li><a href="{season_address(season)}">{text(season)}</a></li>' for season in found)
    cursor = document.get("next_cursor")
    more = f'<p><a href="/read?cursor={segment(cursor)}">{messages.gettext("More seasons")}</a></p>' if cursor else ""
    return card(f'<ul class="plain">{lines}</ul>') + more
