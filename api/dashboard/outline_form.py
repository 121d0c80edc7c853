"""The form of an outline that waits for approval: the title of the deck, and for each slide its title and its points.

Invariant: typed text stays while the page refreshes: the form is created once per wait. A pure function converts its
fields to an outline; the API validates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.view import heading, note


class SlideFields(NamedTuple):
    """The fields of a slide; `points`: one per line."""

    title: str
    points: str


def outline_of_fields(title: str, slides: Iterable[SlideFields]) -> dict[str, Any]:
    """Return the outline in the API's form; empty slides and lines are left out."""
    planned = [
        {"title": one.title.strip(), "points": [line.strip() for line in one.points.splitlines() if line.strip()]}
        for one in slides
    ]
    return {"title": title.strip(), "slides": [one for one in planned if one["title"] or one["points"]]}


class OutlineForm:
    """The form in one browser."""

    def __init__(self) -> None:
        self._until: str | None = None
        self._before: Mapping[str, Any] = {}
        self._rows: list[tuple[ui.input, ui.textarea]] = []

    def build(self) -> None:
        """Add the container of the form; it is empty until `show`."""
        self._place = ui.element("div").classes("full-width")

    def show(self, waiting: Mapping[str, Any] | None) -> None:
        """Show the waiting outline, in the API's form (`waiting_for` of a job); None: there is none."""
        until = None if waiting is None else waiting["until"]
        if until == self._until:
            return
        self._until = until
        self._rows = []
        self._place.clear()
        if waiting is not None:
            self._before = waiting["outline"]
            with self._place, ui.element("div").classes("hw-card full-width"):
                self._fill(waiting)

    def edited(self) -> dict[str, Any] | None:
        """Return the changed outline; None: it was not changed."""
        fields = (SlideFields(str(title.value or ""), str(points.value or "")) for title, points in self._rows)
        found = outline_of_fields(str(self._title.value or ""), fields)
        return None if found == self._before else found

    @property
    def slides(self) -> int:
        """Return the number of slides to be made."""
        return len((self.edited() or self._before)["slides"])

    def _fill(self, waiting: Mapping[str, Any]) -> None:
        heading("Outline")
        note(
            f"Slides are made only after the outline is approved. It waits until {figures.iso_text(waiting['until'])} UTC; "
            "then the job fails. One point a line."
        )
        self._title = ui.input("Title of the deck", value=self._before["title"]).props("outlined dense")
        self._title.classes("full-width")
        self._slides = ui.element("div").classes("full-width")
        for one in self._before["slides"]:
            self._add(one["title"], "\n".join(one["points"]))
        ui.button("Add a slide", icon="add", on_click=lambda: self._add("", "")).props("flat no-caps")

    def _add(self, title: str, points: str) -> None:
        with self._slides, ui.element("section").classes("hw-slide full-width") as section:
            shown = ui.input("Slide", value=title).props("outlined dense").classes("full-width")
            told = ui.textarea("Points", value=points).props("outlined dense autogrow").classes("full-width")
            row = (shown, told)
            self._rows.append(row)
            ui.button("Remove the slide", icon="delete", on_click=lambda: self._remove(section, row)).props(
                "flat no-caps"
            )

    def _remove(self, section: ui.element, row: tuple[ui.input, ui.textarea]) -> None:
        self._rows.remove(row)
        section.delete()
