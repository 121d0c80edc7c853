"""Matches: those of a season, and one match, whose result is published or corrected here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions
from highwater.api.dashboard.tables import table_html
from highwater.api.dashboard.tiles import loading
from highwater.api.dashboard.view import View, chip, facts, link, note, page, place, segment, set_html, text
from highwater.api.league.routes_writes import FINALIZE

_REFRESH_SECONDS = 5.0
_GOALS_MAX = 999


def register() -> None:
    """Register the page."""
    page("/match", "Matches")(_build)


async def _build(view: View) -> None:
    if view.asked("id"):
        match = _Match(view, view.asked("id"))
        match.build()
        view.live(_REFRESH_SECONDS, match.refresh)
        return
    listed = place(loading("the matches"))

    async def refresh() -> None:
        seasons = [one["season"] for one in (await view.get("/api/league"))["seasons"]]
        season = view.asked("season") or next(iter(seasons), "")
        schedule = await view.find(f"/api/league/{segment(season)}/schedule") if season else {"rounds": []}
        set_html(listed, listed_html(seasons, season, schedule))

    view.live(_REFRESH_SECONDS, refresh)


def listed_html(seasons: Sequence[str], season: str, schedule: Mapping[str, Any] | None) -> str:
    """Return the matches of a season, and links to the others; `schedule` None: there is no such season."""
    links = " ".join(
        f'<a href="{text(link("/match", season=one))}"{" aria-current=true" if one == season else ""}>{text(one)}</a>'
        for one in seasons
    )
    others = f'<p class="hw-small">Seasons: {links}</p>' if seasons else ""
    if schedule is None:
        return f'<div class="hw-card">There is no season <b>{text(season)}</b>.</div>{others}'
    matches = [one for of_round in schedule["rounds"] for one in of_round["matches"]]
    if not matches:
        told = "There is no match yet: <code>highwater publish league.match-scheduled</code> adds one."
        return f'<div class="hw-card hw-muted">{told}</div>'
    rows = "".join(map(_row, sorted(matches, key=lambda one: (one["home_goals"] is not None, one["kickoff"] or ""))))
    columns = ("kickoff (UTC)", "round", "home", "away", "result", "state")
    return others + table_html(columns, rows, f"Matches of {season}")


def _row(one: Mapping[str, Any]) -> str:
    has_result = one["home_goals"] is not None
    result = f"{one['home_goals']} : {one['away_goals']}" if has_result else "no result yet"
    return (
        f"<tr><td>{figures.iso_text(one['kickoff'])}</td><td>{text(one['round'])}</td><td>{text(one['home'])}</td>"
        f'<td>{text(one["away"])}</td><td><a href="{text(link("/match", id=one["match_id"]))}">{result}</a></td>'
        f"<td>{text(one['state'])}</td></tr>"
    )


class _Match:
    """One match in one browser."""

    def __init__(self, view: View, match_id: str) -> None:
        self._view = view
        self._id = match_id
        self._meta: dict[str, Any] = {}

    def build(self) -> None:
        """Add the elements."""
        self._card = place(loading("the match"))
        self._form = ui.row().classes("hw-row")
        self._form.set_visibility(False)
        self._actions = Actions(self._view)
        if self._view.may(FINALIZE):
            with self._form:
                self._goals = [_goals("Goals of the home side"), _goals("Goals of the away side")]
                self._button = ui.button("Finalize", icon="flag", on_click=self._finalize).props("no-caps outline")
        else:
            note(f"Publishing the result of a match needs the role {FINALIZE.least}.")
        self._actions.build()
        ui.html('<a href="/match">All matches</a>', sanitize=False)

    async def refresh(self) -> None:
        """Read it."""
        document = await self._view.find(f"/api/matches/{segment(self._id)}")
        if document is None:
            told = f'There is no match <span class="hw-mono">{text(self._id)}</span>; its id may be misspelt.'
            set_html(self._card, f'<div class="hw-card">{told}</div>')
            return
        self._meta = document["meta"]
        set_html(self._card, _card(document))
        if self._view.may(FINALIZE):
            self._form.set_visibility(True)
            self._button.set_text("Correct the result" if self._meta.get("result") else "Finalize")

    async def _finalize(self) -> None:
        goals = [goals_of(field.value) for field in self._goals]
        home, away = goals
        if home is None or away is None:
            self._actions.tell(f"The result needs two whole numbers from 0 to {_GOALS_MAX}.", is_wrong=True)
            return
        body = {"home_goals": home, "away_goals": away}
        await self._actions.run(
            consequences.finalize_match(self._meta, home, away),
            "The result was published; table and results are updated.",
            lambda: self._view.send("POST", f"/api/matches/{segment(self._id)}/finalize", body=body),
        )


def _goals(label: str) -> ui.number:
    return (
        ui.number(label, min=0, max=_GOALS_MAX, precision=0, format="%d").props("dense outlined").style("width:12rem")
    )


def goals_of(value: object) -> int | None:
    """Return the goals in a field; None if it is not a whole number from 0 to 999."""
    if not isinstance(value, int | float) or value != int(value) or not 0 <= value <= _GOALS_MAX:
        return None
    return int(value)


def _card(document: Mapping[str, Any]) -> str:
    meta, live = document["meta"], document["live"] or {}
    result = meta.get("result")
    told = {
        "season": text(meta["season"]),
        "round": text(meta["round"]),
        "kickoff": f"{figures.iso_text(meta['kickoff'])} UTC",
        "state": chip(str(meta["state"])),
        "result": "none yet" if result is None else f"{result['home_goals']} : {result['away_goals']}",
    }
    for name, label in (("extra_time", "after extra time"), ("penalties", "penalties")):
        if name in meta:
            told[label] = f"{meta[name]['home_goals']} : {meta[name]['away_goals']}"
    if meta.get("finalized_at"):
        told["finalized"] = f"{figures.iso_text(meta['finalized_at'])} UTC"
    if live.get("home_goals") is not None:
        minute = "" if live["minute"] is None else f", minute {live['minute']}"
        told["score in play"] = text(f"{live['home_goals']} : {live['away_goals']}{minute}")
    return (
        f'<div class="hw-card"><h2 class="hw">{text(meta["home"])} against {text(meta["away"])}</h2>{facts(told)}</div>'
    )
