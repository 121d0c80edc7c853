"""A season as of an earlier place in the log: its pages and its latest changes, moved by a slider over all changes.

Invariants. Each page is a function of the changes up to the position in the address (`season_pages.py`). A log that
lacks the first changes is reported. External text is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.actions import position_html
from highwater.api.dashboard.season_pages import PAGES, page_html, page_of
from highwater.api.dashboard.slider import Slider
from highwater.api.dashboard.view import View, heading, link, note, set_html, text
from highwater.api.explain.routes import EXPLAIN, explained
from highwater.connectors.explain.seasons import SeasonLog
from highwater.schemas.errors import HighwaterError
from highwater.streams.league.past import Change

_CHANGES_SHOWN = 8
_PREFIX = "league:"


def season_of(key: str) -> str | None:
    """Return the season in the key of a league page; None if it has none."""
    return key.split(":", 2)[2] if key.startswith(_PREFIX) and key.count(":") > 1 else None


def place_of(changes: Sequence[Change], position: str) -> int | None:
    """Return the step of the change at a position, else the last; None: no change was read."""
    if not position:
        return len(changes) - 1
    return next((step for step, change in enumerate(changes) if change.by.position == position), None)


class SeasonPast:
    """The card in one browser. The log is read once, on request; the slider moves over the changes that were read."""

    def __init__(self, view: View, key: str, season: str) -> None:
        self._view = view
        self._key = key
        self._season = season
        self._changes: Sequence[Change] = ()
        self._step = 0

    def build(self) -> None:
        """Add the elements; if the address names a position, the log is read at once."""
        with ui.column().classes("hw-card"):
            heading(f"Season {self._season} as of an earlier change")
            note(
                "Reads every change of the season's matches from the log. A slider then shows earlier states, without the "
                "declared rules of the season."
            )
            self._button = ui.button("Read the log", icon="history", on_click=self._read).props("outline no-caps")
            with ui.element("div").classes("hw-as-of"):
                self._slider = Slider("Place in the log", self._moved)
                self._shown = ui.html("", sanitize=False).props("role=status")
            asked = self._view.asked("show") or page_of(self._key)
            self._page = asked if asked in PAGES else "table"
            self._pages = ui.select(dict(PAGES), value=self._page, label="Page", on_change=self._chosen)
            self._pages.props("dense outlined").style("width:11rem").set_visibility(False)
            self._made = ui.html("", sanitize=False).classes("full-width")
        if self._view.asked("position"):
            ui.timer(0, self._read, once=True)

    async def _read(self) -> None:
        self._button.disable()
        set_html(self._shown, "Reading the log…")
        try:
            await self._view.count(EXPLAIN)
            found: SeasonLog = await explained(self._view.services, lambda explainer: explainer.season(self._season))
        except HighwaterError as error:
            set_html(self._shown, f'<span class="hw-warn">{text(error)}. Try again.</span>')
            return
        finally:
            self._button.enable()
        self._changes = found.changes
        problem = (
            "" if found.is_complete else "The log does not go back to the first change, so matches may be missing."
        )
        if not found.changes:
            set_html(self._shown, "The log has no change of this season yet: the first is a scheduled match.")
            return
        asked = self._view.asked("position")
        step = place_of(found.changes, asked)
        if step is None:
            problem = f"The log has no change of this season at {asked}; the newest is shown. {problem}"
        self._show(len(found.changes) - 1 if step is None else step, problem)

    async def _moved(self, step: int) -> None:
        self._show(step, "")
        self._note_address()

    def _chosen(self) -> None:
        """Show another page, at the same position."""
        self._page = str(self._pages.value)
        if self._changes:
            self._show_page()
            self._note_address()

    def _note_address(self) -> None:
        """Put the displayed state into the browser's address, so that it can be shared."""
        position = self._changes[self._step].by.position
        ui.navigate.history.replace(link("/league", key=self._key, position=position, show=self._page))

    def _show(self, step: int, problem: str) -> None:
        by = self._changes[step].by
        words = f"Change {step + 1:,} of {len(self._changes):,}, {figures.moment(by.arrived_ms)} UTC"
        self._slider.show(len(self._changes) - 1, step, words)
        warning = f'<br><span class="hw-warn">{text(problem)}</span>' if problem else ""
        place = f'<span class="hw-mono">{position_html(self._view, by.position)}</span>'
        set_html(self._shown, f"{text(words)}, {place}{warning}")
        self._step = step
        self._pages.set_visibility(True)
        self._show_page()

    def _show_page(self) -> None:
        changes = self._changes[: self._step + 1]
        set_html(self._made, page_html(self._page, self._season, changes) + latest_html(changes))


def latest_html(changes: Sequence[Change]) -> str:
    """Return the latest changes, the newest first."""
    lines = "".join(
        f'<li><a href="{text(link("/match", id=one.match["match_id"]))}">{text(one.match["home"])} - '
        f"{text(one.match['away'])}</a> {_score(one.match)} "
        f'<span class="hw-muted hw-small">{text(", ".join(one.match["changed"]))} · '
        f"{figures.moment(one.by.arrived_ms)}</span></li>"
        for one in reversed(changes[-_CHANGES_SHOWN:])
    )
    return f'<h3 class="hw">Changes up to then</h3><ul class="hw-changes">{lines}</ul>'


def _score(match: Mapping[str, Any]) -> str:
    if match["home_goals"] is None:
        return text(match["status"])
    state = "" if match["state"] == "final" else " (in play)"
    return f"{match['home_goals']} : {match['away_goals']}{state}"
